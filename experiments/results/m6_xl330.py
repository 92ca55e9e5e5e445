"""M6 of Duclusaud et al. 2024 and our models on XL330 recordings that were kept aside:
experiments/results/2026-11-26-actuators.md.

    npmp actuator import bam source=bam_xl330.npz out=xl330.npz
    python experiments/results/m6_xl330.py xl330.npz [m6.json]

M6, written from its formulas: a DC motor behind the firmware's P controller and limits of supply
and current, friction that grows with the motor's and the load's torque (directional, quadratic) and
falls with speed (Stribeck), at most what stops the joint. Its 15 numbers are identified as its
authors do, by the position that a simulated pendulum reaches from the commands alone, here on the
recordings that are not kept aside (differential evolution from their published values; these,
m6.json of the package better-actuator-models, are judged too where the file is given: they know all
recordings).

Two measures. Position: the pendulum is simulated at the log's rate from a recording's commands, at
rest at its first position; MAE [rad], mean of recordings. M6 and the closed forms are told the
simulated velocity, the MLP the rise over the 80 ms before, as in the log that it was fitted to.
Torque: RMSE [Nm] given command, position and the log's velocity. M6 is told the load there, m g l
sin q, which is the larger part of the log's torque; `load` is the error of that part alone. Of ours
the load tells only what of the torque accelerates the rotor, where they know one (`evaluate`).
"""

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import differential_evolution

from npmp.actuators import ActuatorLog, HeldOut, read_log
from npmp.actuators.evaluation import evaluate, position_errors
from npmp.actuators.fitting import fit, static_law
from npmp.actuators.importers import SMOOTHED_S
from npmp.actuators.models import MLP, ActuatorModel
from npmp.actuators.pendulum import Pendulums

HELD = (
    "*up_and_down*",
    "*sin_time_square*",
    "*sin_sin*",
    "*lift_and_drop*",
    "*kp100",
    "*kp200",
    "*kp800",
)
MASS, LENGTH, GRAVITY = 0.49, 0.1, 9.81  # of every recording's pendulum
LOAD, INERTIA = MASS * GRAVITY * LENGTH, MASS * LENGTH**2
VOLTS, AMPERES = 7.4, 1.75  # of the supply; the firmware's limit of the current
RANGES = {
    "kt": (0.1, 3.0), "R": (2.0, 5.0), "armature": (1e-4, 0.05), "q_offset": (-0.1, 0.1),
    "friction_base": (0.0, 0.2), "friction_stribeck": (0.0, 0.2), "friction_viscous": (0.0, 1.0),
    "load_friction_motor": (0.0, 0.5), "load_friction_external": (0.0, 0.5),
    "load_friction_motor_stribeck": (0.0, 1.0), "load_friction_external_stribeck": (0.0, 1.0),
    "load_friction_motor_quad": (0.0, 0.01), "load_friction_external_quad": (0.0, 0.01),
    "dtheta_stribeck": (0.01, 5.0), "alpha": (0.5, 10.0),
}  # fmt: skip
Values = NDArray[np.float64]


def m6(x: Values, goal: Values, q: Values, v: Values, kp: Values, dt: float) -> Values:
    """Accelerations of the pendulum [rad/s^2]; parameters x (15, ...), kp in the log's share of the
    supply per rad."""
    p = dict(zip(RANGES, x, strict=True))
    emf, most = p["kt"] * v / VOLTS, p["R"] * AMPERES / VOLTS
    duty = np.clip(np.clip(kp * (goal - q), emf - most, emf + most), -1.0, 1.0)
    motor = p["kt"] * (duty * VOLTS - p["kt"] * v) / p["R"]
    load = -LOAD * np.sin(q + p["q_offset"])
    slow = np.exp(-(np.abs(v / p["dtheta_stribeck"]) ** p["alpha"]))
    friction = p["friction_base"] + np.abs(
        p["load_friction_external"] * load - p["load_friction_motor"] * motor
    )
    of_gears = np.abs(
        p["load_friction_external_stribeck"] * load - p["load_friction_motor_stribeck"] * motor
    )
    quadratic = np.where(
        np.abs(load) < np.abs(motor), p["load_friction_external_quad"] * load**2, 0.0
    )
    quadratic = quadratic + np.where(
        np.abs(load) > np.abs(motor), p["load_friction_motor_quad"] * motor**2, 0.0
    )
    opposed = np.sign(load) != np.sign(motor)
    friction = friction + slow * (p["friction_stribeck"] + of_gears + opposed * quadratic)
    inertia = INERTIA + p["armature"]
    stops = inertia / dt * v + motor + load
    friction = np.sign(stops) * np.minimum(
        np.abs(stops), friction + p["friction_viscous"] * np.abs(v)
    )
    told: Values = (motor + load - friction) / inertia
    return told


def position_error(log: ActuatorLog, accelerate: Any, shape: tuple[int, ...] = ()) -> Values:
    """MAE (shape, N) [rad] of simulated pendulums; accelerate(goal, q, v) [rad/s^2] is called once
    a sample."""
    swung = Pendulums(log)
    off = swung.errors(lambda t, q, v: accelerate(swung.command[t], q, v), shape)
    error: Values = np.abs(off).sum(0) / swung.there.sum(0)
    return error


def gains(log: ActuatorLog) -> Values:
    """kp (N,)."""
    return np.array([trace.kp for trace in log.traces])


def position_error_of_m6(x: Values, log: ActuatorLog) -> Values:
    """MAE [rad] of parameters (15, P), mean of recordings (P,)."""
    kp, wide = gains(log), x[..., None]
    run = position_error(
        log, lambda goal, q, v: m6(wide, goal, q, v, kp, 1.0 / log.rate_hz), x.shape[1:]
    )
    mean: Values = run.mean(-1)
    return mean


def torque_error_of_m6(x: Values, log: ActuatorLog) -> float:
    """RMSE [Nm] of the torque on the pendulum."""
    off = []
    for trace in log.traces:
        q, v = trace.others["position"].astype(np.float64), trace.velocity.astype(np.float64)
        a = m6(x[:, None], q + trace.position_error, q, v, np.array(trace.kp), 1.0 / log.rate_hz)
        off.append(INERTIA * a + LOAD * np.sin(q) - trace.torque)
    return float(np.sqrt(np.mean(np.concatenate(off) ** 2)))


def position_error_of_model(model: ActuatorModel, log: ActuatorLog) -> float:
    """MAE [rad] of one of ours, mean of recordings."""
    past: deque[Values] = deque(maxlen=2 * round(SMOOTHED_S * log.rate_hz / 2) + 1)

    def rise(q: Values, v: Values) -> Values:
        past.append(q.copy())
        found: Values = (q - past[0]) * log.rate_hz / max(len(past) - 1, 1)
        return found

    return float(position_errors(model, log, rise if isinstance(model, MLP) else None).mean())


def judged(log: ActuatorLog, held: str, published: Values | None) -> dict[str, list[float]]:
    """MAE [rad] and RMSE [Nm] of every model on what fits the pattern, fitted to the rest."""
    rest, kept = log.split(HeldOut(0.0, [held]))
    assert kept is not None
    start = (
        published
        if published is not None
        else np.array([np.mean(limits) for limits in RANGES.values()])
    )
    low, high = np.array(list(RANGES.values())).T
    identified = {} if published is None else {"M6 published": published}
    for seed in range(3):
        identified[f"M6, seed {seed}"] = differential_evolution(
            lambda x: position_error_of_m6(x, rest),
            list(RANGES.values()),
            x0=np.clip(start, low, high),
            popsize=3,
            maxiter=100,
            mutation=(0.4, 0.9),
            tol=1e-4,
            polish=False,
            vectorized=True,
            updating="deferred",
            seed=seed,
        ).x
    told: dict[str, list[float]] = {}
    for name, x in identified.items():
        told[name] = [float(position_error_of_m6(x[:, None], kept)[0]), torque_error_of_m6(x, kept)]
    a, b, c = static_law(rest)
    constant = position_error(
        kept, lambda g, q, v: (a * (g - q) - b * v + c - LOAD * np.sin(q)) / INERTIA
    )
    several = [("pd", 0), *((kind, seed) for kind in ("hybrid", "mlp") for seed in range(3))]
    for kind, seed in several:
        model = fit(kind, rest, seed=seed)
        figures = evaluate(model, kept).figures
        told[f"{kind}, seed {seed}"] = [
            position_error_of_model(model, kept),
            figures["rollout_rmse_nm"],
        ]
    off = [LOAD * np.sin(trace.others["position"]) - trace.torque for trace in kept.traces]
    return {
        "constant gains": [
            float(constant.mean()),
            evaluate(model, kept).figures["baseline_rmse_nm"],
        ],
        "load": [float("nan"), float(np.sqrt(np.mean(np.concatenate(off) ** 2)))],
        **told,
    }


def main() -> None:
    """Print a table of each part that is kept aside."""
    log = read_log(sys.argv[1])
    published = None
    if len(sys.argv) > 2:
        numbers = json.loads(Path(sys.argv[2]).read_text())
        published = np.array([numbers[name] for name in RANGES])
    torch.set_num_threads(1)
    for held in HELD:
        print(held, "position [rad], torque [Nm]", flush=True)
        for name, values in judged(log, held, published).items():
            print(f"  {name:16} {' '.join(f'{value:.4f}' for value in values)}", flush=True)


if __name__ == "__main__":
    main()
