"""A servo in closed form: a motor's torque with a limit and friction.

The motor's limit falls with speed as a DC motor's. Friction falls with speed (Stribeck) and grows
with the motor's torque, as that of gears. A joint moves by `BRISTLE_RAD` before it slides (an
elasto-plastic bristle, Dupont et al. 2002), so friction holds any load within its limit. All
functions take numpy arrays or torch tensors (...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# [rad] deflection of the bristle at which friction is at its limit [D]
BRISTLE_RAD = 0.01
# [s] damping of the bristle over its stiffness, against oscillations of joints at rest [D]
BRISTLE_DAMPING_S = 0.005

Values = TypeVar("Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class PDParameters:
    """The numbers of a servo, SI units."""

    # [Nm per unit of effort]
    stiffness: float
    # [Nm s/rad]
    damping: float
    # [Nm]
    offset: float = 0.0
    # [s] of a first-order lag
    lag_s: float = 0.0
    # [Nm] motor torque at rest
    limit: float = 1e6
    # [Nm s/rad] fall of that torque with speed in its direction
    limit_slope: float = 0.0
    # [Nm] friction while sliding
    coulomb: float = 0.0
    # [Nm] additional friction at rest
    stiction: float = 0.0
    # [rad/s] speed over which stiction falls
    stribeck: float = 1.0
    # friction while sliding per Nm of the motor
    load: float = 0.0
    # additional friction per Nm at rest
    load_at_rest: float = 0.0
    # [kg m^2] of the rotor at the joint
    armature: float = 0.0


def motor_target(p: PDParameters, effort: Values, velocity: Values) -> Values:
    """The torque (...) [Nm] that the motor approaches."""
    return p.stiffness * effort - p.damping * velocity + p.offset


def lag_fraction(lag_s: Any, rate_hz: float) -> Any:
    """The fraction of the way to its target that a first-order lag covers in a sample."""
    return 1.0 - np.exp(-1.0 / (np.maximum(lag_s, 1e-6) * rate_hz))


def limit_torque(p: PDParameters, motor: Values, velocity: Values) -> Values:
    """A motor's torque (...) [Nm] within its limit: most * tanh(motor / most)."""
    library: Any = torch if isinstance(motor, Tensor) else np
    most = (p.limit - p.limit_slope * velocity * library.sign(motor)).clip(1e-9, None)
    return most * library.tanh(motor / most)


def friction_limit(p: PDParameters, motor: Values, velocity: Values) -> Values:
    """The largest friction (...) [Nm] at a motor's torque within its limit."""
    library: Any = torch if isinstance(motor, Tensor) else np
    at_rest = library.exp(-abs(velocity) / p.stribeck)
    of_load = p.load + p.load_at_rest * at_rest
    return p.coulomb + p.stiction * at_rest + of_load * abs(motor)


def advance_bristle(deflection: Values, velocity: Values, rate_hz: float) -> tuple[Values, Values]:
    """The bristle's deflection (...) after another sample, as a share of `BRISTLE_RAD`, -1 or 1
    while sliding; and friction as a share of its limit, of a spring and a damper."""
    after = (deflection + velocity / (rate_hz * BRISTLE_RAD)).clip(-1.0, 1.0)
    share = (after + BRISTLE_DAMPING_S * rate_hz * (after - deflection)).clip(-1.0, 1.0)
    return after, share


def initial_deflection(p: PDParameters, motor: Values, velocity: Values, torque: Values) -> Values:
    """The bristle's deflection (...) at which `joint_torque` is nearest to a torque [Nm]."""
    limited = limit_torque(p, motor, velocity)
    most = friction_limit(p, limited, velocity).clip(1e-9, None)
    return ((limited - torque) / most).clip(-1.0, 1.0)


def joint_torque(p: PDParameters, motor: Values, velocity: Values, friction: Values) -> Values:
    """The joint's torque (...) [Nm] after limit and friction. friction: (...) share of its
    limit."""
    limited = limit_torque(p, motor, velocity)
    return limited - friction_limit(p, limited, velocity) * friction
