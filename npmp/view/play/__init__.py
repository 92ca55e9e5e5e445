"""Steer a robot in the browser: a session of one robot, and the page that shows it.

`session.py` is the session without a browser and a clock, `modes.py` its modes, `realtime.py` steps
it in real time. `scene.py` draws it with viser; `server.py` serves the page of `assets/` and viser
on one port.
"""

from npmp.view.play.modes import MODES, Cast, Mode, World
from npmp.view.play.session import Session, Snapshot

__all__ = ["MODES", "Cast", "Mode", "Session", "Snapshot", "World"]
