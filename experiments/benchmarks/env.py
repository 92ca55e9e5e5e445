"""Environment steps per second against the bare simulator's, in the same process on the same
states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
from torch import Tensor

from npmp import robots, tasks
from npmp.experiments import imitate
from npmp.experiments.backend import place_of, robots_config_of
from npmp.experiments.benchmarks import finished, motions_of, parser, settings, show
from npmp.sim import BatchSim, Simulator, flat_scene
from npmp.tasks import ImitationEnv


def main(arguments: list[str] | None = None) -> None:
    """Measure and show the figures."""
    options = parser(__doc__)
    options.add_argument("--num-envs", type=int, default=1024, help="simulations stepped at once")
    options.add_argument("--seconds", type=float, default=10.0, help="measuring time in all")
    given = options.parse_args(arguments)
    config, run = settings(imitate.main, given.keys, [("data", "none")])
    show("env", config.robot, measure(config, run, given))


def measure(config: imitate.ImitateKeys, run: Any, given: Any) -> dict[str, Any]:
    """The figures of either side.

    The robots follow the reference's joint angles and are reset where they fail, as in training.
    Before every control step the simulations' whole state is noted; the bare simulator then takes
    the very same steps from the very same states, by the same call with the same setpoints and the
    same hold (noting and placing them is not timed). Blocks of both alternate, so that a busy
    machine slows both alike, and totals are compared.
    """
    place, robot = place_of(config, run), robots.load(config.robot)
    env = tasks.make(
        "imitation",
        robot=robot.name,
        data=motions_of(given.data, robot),
        num_envs=given.num_envs,
        seed=run.seed,
        robots_config=robots_config_of(config, config.task),
        **place,
    )
    model = flat_scene(robot, env.task.add_to_scene)  # with ideal drives
    raw, physics_steps = bare_simulator(env.sim, model, robot.control_rate_hz, run.threads)
    seconds, steps, resets = timed_blocks(env, raw, physics_steps, given.seconds)
    raw_steps_per_s = steps / seconds["raw"]
    return {
        "steps_per_s": round(steps / seconds["env"], 1),
        "raw_physics_steps_per_s": round(raw_steps_per_s * raw.substeps, 1),
        "ratio": round(seconds["raw"] / seconds["env"], 4),
        "raw_control_steps_per_s": round(raw_steps_per_s, 1),
        "substeps": raw.substeps,
        "num_envs": env.num_envs,
        "steps": steps,
        "resets": resets,
        "seconds": {side: round(time_s, 3) for side, time_s in seconds.items()},
        "threads": run.threads,
        "torch_threads": config.torch_threads,
        "randomization": run.chosen["randomization"],
        "actuator": config.actuator,
        **place,
    }


def timed_blocks(
    env: ImitationEnv,
    raw: Simulator,
    physics_steps: Callable[[Tensor, Tensor | None], None],
    least: float,
) -> tuple[dict[str, float], int, int]:
    """Seconds of either side in blocks that alternate for `least` seconds, steps of all robots, and
    resets."""
    block, seconds = 16, {"env": 0.0, "raw": 0.0}
    steps = resets = 0
    warm_up = True
    while warm_up or sum(seconds.values()) < least:
        spent = {"env": 0.0, "raw": 0.0}
        noted = []
        for _ in range(block):
            action = env.task.reference.at(env.task.frame).joint_pos - env.home
            # as `RobotBatch.step` asks for it; nobody changes a setpoint in place
            previous = env.state.setpoint if env.robots.config.hold == "first_order" else None
            asked = (env.sim.snapshot(), env.robots.setpoint(action), previous)
            begin = finished(env.device)
            env.observe()
            step = env.step(action)
            done = step.terminated | step.truncated
            env.reset(done)
            spent["env"] += finished(env.device) - begin
            noted.append(asked)
            resets += int(done.sum())
        for before, ctrl, previous in noted:
            raw.restore(before[:, : raw.snapshot().shape[1]])
            begin = finished(env.device)
            physics_steps(ctrl, previous)
            spent["raw"] += finished(env.device) - begin
        if warm_up:  # the first block pays for imports, caches and threads
            warm_up, resets = False, 0
            continue
        steps += block * env.num_envs
        for side, time_s in spent.items():
            seconds[side] += time_s
    return seconds, steps, resets


def bare_simulator(
    sim: Simulator, model: mujoco.MjModel, control_rate_hz: float, num_threads: int
) -> tuple[BatchSim, Callable[[Tensor, Tensor | None], None]]:
    """Another simulator of as many robots on the host alone, with nothing around it and ideal
    drives, and its `BatchSim.step`."""
    host = BatchSim(model, sim.num_envs, control_rate_hz=control_rate_hz, num_threads=num_threads)
    return host, lambda ctrl, previous: host.step(
        ctrl.cpu(), None if previous is None else previous.cpu()
    )


if __name__ == "__main__":
    main()
