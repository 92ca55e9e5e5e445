"""Films of robots, rendered by MuJoCo without a display: mp4, GIF, WebP, and stills as PNG.

A `Shot` is a motion and a `View` of it; `draw` renders its frames in another process, `write`
writes them to a file.
"""

from npmp.view.render.clip import ReplayClip
from npmp.view.render.files import check_format, write
from npmp.view.render.film import draw
from npmp.view.render.shot import Mount, Shot, View, camera_of

__all__ = ["Mount", "ReplayClip", "Shot", "View", "camera_of", "check_format", "draw", "write"]
