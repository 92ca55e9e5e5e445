"""A static page that runs bundles and MuJoCo in the browser."""

from npmp.deploy.web.site import Walker, refuse_other_commands, write

__all__ = ["Walker", "refuse_other_commands", "write"]
