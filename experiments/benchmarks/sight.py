"""The cost of height maps and depth cameras: time of environment steps relative to the physics
alone, and images per second and core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from npmp import robots
from npmp.core.settings import changed, to_plain
from npmp.envs import TaskEnv
from npmp.envs.camera import CAMERAS
from npmp.envs.physics_time import finished, recorded_physics, repeat_physics
from npmp.experiments import imitate
from npmp.experiments.benchmarks import NO_DATA, parser, settings, show
from npmp.tasks.walk import Walk, WalkConfig

# control steps of a block; a camera of 10 Hz takes five images
BLOCK = 25
LARGE = to_plain(replace(CAMERAS["stereo"], size=(64, 36)))
SENSING: dict[str, dict[str, Any]] = {
    "blind": {},
    "map": {"sees_ground": True, "ground_delay_s": 0.06},
    "depth 16 x 9": {"camera": "stereo"},
    "depth 64 x 36": {"camera": LARGE},
}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the figures."""
    options = parser(__doc__)
    options.add_argument("--num-envs", type=int, default=64, help="simulations stepped at once")
    options.add_argument("--blocks", type=int, default=8, help="of each kind of sensing")
    args = options.parse_intermixed_args(arguments)
    config, run = settings(imitate.main, args.keys, [NO_DATA])
    show("sight", config.robot, measure(config, run, args))


def measure(config: imitate.ImitateKeys, run: Any, args: Any) -> dict[str, Any]:
    """Control steps per second, and time relative to the physics, by kind of sensing."""
    robot = robots.load(config.robot)
    place = run.place | {"seed": run.seed}
    envs = {
        name: TaskEnv(
            Walk(robot, changed(WalkConfig(), terrain="stairs", **sensing)), args.num_envs, **place
        )
        for name, sensing in SENSING.items()
    }
    spent = dict.fromkeys(envs, 0.0)
    physics = dict.fromkeys(envs, 0.0)
    for block in range(args.blocks + 1):
        for name, env in envs.items():
            with recorded_physics(env) as recorded:
                begin = finished(env.device)
                for _ in range(BLOCK):
                    env.task.observe()
                    step = env.step(torch.zeros(env.num_envs, env.num_actions))
                    env.reset(step.terminated | step.truncated)
                seconds = finished(env.device) - begin
                if block:  # the first includes caches
                    spent[name] += seconds
                    physics[name] += repeat_physics(env, recorded)
    steps = args.blocks * BLOCK * args.num_envs
    result: dict[str, Any] = {"num_envs": args.num_envs, "threads": run.threads}
    for name in envs:
        more = spent[name] - spent["blind"]
        result[name] = {
            "control_steps_per_s": round(steps / spent[name], 1),
            "share_of_blind_step": round(more / spent["blind"], 3),
            "times_physics": round(more / physics[name], 3),
        }
        if name.startswith("depth"):
            result[name]["images_per_s"] = round(steps / 5 / more, 1)
    return result


if __name__ == "__main__":
    main()
