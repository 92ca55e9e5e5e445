"""Films of robots, drawn by MuJoCo without a display: mp4, GIF, WebP, and stills as PNG.

A `Shot` says what is seen, its `View` from where; `draw` makes frames of it in another process,
`write` a file of them.
"""

from npmp.view.render.clip import ReplayClip
from npmp.view.render.files import check_format, write
from npmp.view.render.film import draw
from npmp.view.render.shot import Mount, Shot, View, camera_of

__all__ = ["Mount", "ReplayClip", "Shot", "View", "camera_of", "check_format", "draw", "write"]
