"""Small arms on a stand."""

from __future__ import annotations

import mujoco
import numpy as np

from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.stand import Floats, Stand

RATE = 50.0
AXES = {"lifting": "0 1 0", "turning": "0 0 1"}


def arm(axis: str = "lifting", *, mass: float = 1.0, substeps: int = 4) -> Stand:
    """A point mass at 0.3 m on one hinge: about a horizontal axis it has a weight, about the
    vertical one none."""
    model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option timestep="{1.0 / RATE / substeps}" integrator="implicitfast"/>
      <worldbody>
        <body>
          <joint name="a" axis="{AXES[axis]}" armature="0.05" damping="0.5" frictionloss="0.2"/>
          <geom type="sphere" size="0.001" pos="0.3 0 0" mass="{mass}"/>
        </body>
      </worldbody>
      <actuator><position name="a" joint="a" kp="40" kv="1" forcerange="-200 200"/></actuator>
    </mujoco>""")
    return Stand(model, ["a"], substeps)


def sweep(seconds: float = 10.0, amplitude: float = 0.4) -> Floats:
    """A sine that quickens from rest, 0.2 to 6 Hz, (T, 1) [rad]."""
    time = np.arange(round(seconds * RATE)) / RATE
    moving = np.maximum(time - 1.0, 0.0)
    phase = 2.0 * np.pi * (0.2 * moving + 0.5 * (6.0 - 0.2) / moving[-1] * moving**2)
    return np.asarray(amplitude * np.sin(phase) * np.linspace(1.0, 0.5, len(time)))[:, None]


def log_of(
    stand: Stand, command: Floats, position: Floats, torque: Floats | None = None
) -> StandLog:
    return StandLog(RATE, stand.joints, (JointRecording("sweep", command, position, None, torque),))
