"""The time of imitation learning by part, compared with the physics alone on the same states.

Iterations are those of `npmp imitate`. The physics alone (`bare`) then repeats the simulator's
calls.
"""

from __future__ import annotations

from typing import Any

import torch

from npmp import robots
from npmp.envs import TaskEnv
from npmp.envs.physics_time import finished, recorded_physics, repeat_physics
from npmp.experiments import imitate
from npmp.experiments.benchmarks import motions_of, parser, settings, show
from npmp.experiments.command import Run
from npmp.learning.imitation import make_trainer
from npmp.learning.model_based import ModelBasedTrainer
from npmp.learning.timing import timed
from npmp.tasks import Imitation


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the figures."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="of iterations")
    args = options.parse_args(arguments)
    config, run = settings(imitate.main, args.keys, ["data=none"])
    show("imitate", config.robot, measure(config, run, args))


def measure(config: imitate.ImitateKeys, run: Run, args: Any) -> dict[str, Any]:
    """Environment steps per second, and the share of each part, over iterations of at least so many
    seconds. Two iterations before them include imports, caches and compilation."""
    robot = robots.load(config.robot)
    training_settings = imitate.settings_of(config, run)
    task = Imitation(robot, training_settings.task, motions_of(args.data, robot))
    env = TaskEnv(
        task,
        training_settings.robots_at_once,
        robots=training_settings.robots,
        seed=run.seed,
        **training_settings.place,
    )
    device = env.device
    trainer = make_trainer(training_settings, env, run.seed)
    if isinstance(trainer, ModelBasedTrainer):
        trainer.warm_up()
    begin = finished(device)
    for _ in range(2):
        trainer.iteration(0.0)
    first_s = finished(device) - begin
    spent = 0.0
    raw = 0.0
    count = 0
    with recorded_physics(env) as recorded, timed(trainer, device) as parts:
        while spent < args.seconds:
            begin = finished(device)
            trainer.iteration(0.5)
            spent += finished(device) - begin
            raw += repeat_physics(env, recorded)
            count += 1
    sampler = parts["sampler"]
    steps = count * trainer.env_steps_per_iteration
    others = sum(seconds for name, seconds in parts.items() if name != "sampler")
    learner = others or spent - sampler
    spent_s = {"whole": spent, "raw_physics": raw, **parts}
    optional = [key for key in ("policy_batch", "compile", "overlap") if hasattr(config.algo, key)]
    return {
        "algo": run.chosen["algo"],
        "samples_per_s": round(steps / spent, 1),
        "sampler_share": round(sampler / spent, 4),
        "learner_share": round(learner / spent, 4),  # with overlap the sum of both threads
        "ratio_to_raw_physics": round(raw / sampler, 4),
        "sampler_steps_per_s": round(steps / sampler, 1),
        "raw_physics_steps_per_s": round(steps / raw * env.robots.substeps, 1),
        "seconds_per_iteration": {name: round(value / count, 5) for name, value in spent_s.items()},
        "first_two_iterations_s": round(first_s, 2),
        "iterations": count,
        "steps_per_iteration": trainer.env_steps_per_iteration,
        "num_envs": env.num_envs,
        "randomization": run.chosen["randomization"],
        "threads": run.threads,
        "torch_threads": torch.get_num_threads(),
        **{name: getattr(config.algo, name) for name in optional},
        "device": config.device,
    }


if __name__ == "__main__":
    main()
