"""A robot to steer while it runs: a session of one robot, and the page in a browser that shows it.

`session.py` knows no browser: what viewers ask goes in, what there is to see comes out. `modes.py`
are the things a robot can be doing. `realtime.py` moves a session by the clock. `scene.py` draws it
with viser, `server.py` serves the page of `assets/` and viser behind one port.
"""

from npmp.view.play.modes import MODES, Cast, Mode, World
from npmp.view.play.session import Session, Snapshot

__all__ = ["MODES", "Cast", "Mode", "Session", "Snapshot", "World"]
