"""Environment steps per second compared with the physics alone, in one process and on the same
states."""

from __future__ import annotations

from typing import Any

from npmp import robots, tasks
from npmp.envs.physics_time import finished, recorded_physics, repeat_physics
from npmp.experiments import imitate
from npmp.experiments.backend import robots_config_of
from npmp.experiments.benchmarks import NO_DATA, motions_of, parser, settings, show

# control steps of a block
BLOCK = 16


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the figures."""
    options = parser(__doc__)
    options.add_argument("--num-envs", type=int, default=1024, help="simulations stepped at once")
    options.add_argument("--seconds", type=float, default=10.0, help="measuring time in all")
    args = options.parse_intermixed_args(arguments)
    config, run = settings(imitate.main, args.keys, [NO_DATA])
    show("env", config.robot, measure(config, run, args))


def measure(config: imitate.ImitateKeys, run: Any, args: Any) -> dict[str, Any]:
    """Figures of environment and physics.

    Robots follow the reference's joint angles and are reset after failures, as in training. Blocks
    of both alternate, and their totals are compared.
    """
    robot = robots.load(config.robot)
    env = tasks.make(
        "imitation",
        robot=robot.name,
        data=motions_of(config, robot),
        num_envs=args.num_envs,
        seed=run.seed,
        robots_config=robots_config_of(config, config.task),
        **run.place,
    )
    steps = resets = 0
    spent = physics = 0.0
    with recorded_physics(env) as recorded:
        # the first block includes imports, caches and threads
        for block in range(10**9):
            done = []
            begin = finished(env.device)
            for _ in range(BLOCK):
                action = (
                    env.task.tracking.reference.at(env.task.tracking.frame).joint_pos - env.home
                )
                env.observe()
                step = env.step(action)
                done.append(step.terminated | step.truncated)
                env.reset(done[-1])
            seconds = finished(env.device) - begin
            repeated = repeat_physics(env, recorded)
            if block == 0:
                continue
            steps = steps + BLOCK * env.num_envs
            resets = resets + sum(int(d.sum()) for d in done)
            spent = spent + seconds
            physics = physics + repeated
            if spent + physics >= args.seconds:
                break
    return {
        "steps_per_s": round(steps / spent, 1),
        "raw_physics_steps_per_s": round(steps / physics * env.robots.substeps, 1),
        "ratio": round(physics / spent, 4),
        "raw_control_steps_per_s": round(steps / physics, 1),
        "substeps": env.robots.substeps,
        "num_envs": env.num_envs,
        "steps": steps,
        "resets": resets,
        "seconds": {"env": round(spent, 3), "raw": round(physics, 3)},
        "threads": run.threads,
        "torch_threads": config.torch_threads,
        "randomization": run.chosen["randomization"],
        "actuator": config.actuator,
        **run.place,
    }


if __name__ == "__main__":
    main()
