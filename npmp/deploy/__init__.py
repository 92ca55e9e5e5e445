"""Policies off the simulator: a folder that a robot can run, without torch and without MuJoCo.

`Bundle` reads and checks the folder, `Policy` acts; `npmp.deploy.export` writes one of a policy and
its module.
"""

from npmp.deploy.bundle import Bundle, BundleContract, Policy, Readings

__all__ = ["Bundle", "BundleContract", "Policy", "Readings"]
