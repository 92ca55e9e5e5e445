"""Films of robots, drawn by MuJoCo without a display: mp4, GIF, WebP, and stills as PNG.

A `Shot` says what is seen, its `View` from where; `draw` makes frames of it in another process,
`write` a file of them.
"""

from npmp.render.clip import ReplayClip
from npmp.render.files import check_format, write
from npmp.render.film import draw
from npmp.render.shot import Mount, Shot, View, camera_of

__all__ = ["Mount", "ReplayClip", "Shot", "View", "camera_of", "check_format", "draw", "write"]
