"""What `npmp bench imitate` measures: where the time of imitation learning goes, against the bare physics on the same
states.

Iterations are timed as `npmp imitate` makes them. What the simulator was asked for is noted (a thousandth of the time),
and the bare physics then takes the same steps from the same states on the same threads: a busy machine slows both
alike. Bare physics is the simulator's own call, `Simulator.step` with the same hold: under a first-order hold it
computes the setpoints of every physics step, as it does in the run. With the learner on a GPU and sim=batch, bringing
setpoints to the host and states back is part of that call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from mocap_data import MotionSet
from npmp import robots
from npmp.envs import TaskEnv
from npmp.experiments.backend import backend_of
from npmp.experiments.bench_tools import finished, motions_of
from npmp.experiments.common import Run, compose, console, cpus
from npmp.experiments.imitate import settings_of
from npmp.robots import Robot
from npmp.sim import Simulator
from npmp.tasks import Imitation
from npmp.training.imitation import make_trainer
from npmp.world_model.trainer import WorldModelTrainer

# the trainers' methods whose time is shown, and as what
SECTIONS = {"_act": "sampler", "collect": "sampler", "fit": "model_fit", "improve_policy": "imagination"}


@dataclass(frozen=True)
class Setting:
    """One row of a sweep."""

    threads: int  # of the simulator
    torch_threads: int
    policy_batch: int | None = None  # None: as configured; algorithms without imagination have none
    compile: bool | None = None
    overlap: bool | None = None

    def of(self, imitation: DictConfig) -> DictConfig:
        """A configuration of npmp imitate, so set."""
        named = {"policy_batch": self.policy_batch, "compile": self.compile, "overlap": self.overlap}
        return OmegaConf.merge(imitation, {"algo": {k: v for k, v in named.items() if v is not None}})  # type: ignore[return-value]


def measure(config: DictConfig, run: Run) -> dict[str, Any]:
    """Environment steps per second of the whole, and the parts' shares; with sweep_settings=true for every setting, and
    the best."""
    robot = robots.load(config.robot.name)
    motions = motions_of(config, robot)
    imitation = compose("imitate", [f"robot={config.robot.name}", "data=none"])
    with open_dict(imitation):
        imitation.update({group: config[group] for group in ("algo", "net", "randomization")})
    own, place = Setting(run.threads, torch.get_num_threads()), backend_of(config, run)
    if not config.sweep_settings:
        return {
            "algo": config.algo.name,
            **measure_one(imitation, own, robot, motions, float(config.seconds), run.seed, place),
        }
    rows = []
    for setting in settings(config):
        rows.append(measure_one(setting.of(imitation), setting, robot, motions, float(config.seconds), run.seed, place))
        shown = {k: v for k, v in rows[-1].items() if k in Setting.__annotations__}
        console().print(f"{rows[-1]['samples_per_s']:>9,.0f} samples/s  {shown}", highlight=False, soft_wrap=True)
    torch.set_num_threads(own.torch_threads)
    usual = [row for row in rows if row.get("policy_batch") == rows[0].get("policy_batch")]
    return {
        "algo": config.algo.name,
        "sweep": rows,
        "best": max(usual, key=lambda row: row["samples_per_s"]),  # of the first batch: others learn another amount
    }


def settings(config: DictConfig) -> Iterator[Setting]:
    """The rows of the sweep: 1 and all CPUs for either kind of threads; what the algorithm has none of does not
    vary."""
    several: Sequence[int] = sorted({1, cpus()})
    fast = "policy_batch" in config.algo
    choices = (config.sweep_batch, config.sweep_compile, config.sweep_overlap) if fast else ((None,),) * 3
    for batch, compile, overlap, threads, torch_threads in itertools.product(*choices, several, several):
        yield Setting(threads, torch_threads, batch, compile, overlap)


def measure_one(
    config: DictConfig,
    setting: Setting,
    robot: Robot,
    motions: MotionSet,
    seconds: float,
    seed: int,
    place: dict[str, str],
) -> dict[str, Any]:
    """Iterations of one setting for so many seconds, after two that pay for imports, caches and compiling.

    place: `sim` and `device` of the environment.
    """
    torch.set_num_threads(setting.torch_threads)
    imitation = settings_of(config, threads=setting.threads, place=place)
    task = Imitation(robot, imitation.task, motions)
    env = TaskEnv(task, config.algo.num_envs, robots=imitation.robots, seed=seed, **imitation.place)
    sim, device = env.sim, env.device
    trainer, schedule = make_trainer(imitation, env, seed)
    if isinstance(trainer, WorldModelTrainer):
        trainer.warm_up()
    begin = finished(device)
    for _ in range(2):
        trainer.iteration(0.0)
    first_s = finished(device) - begin
    whole, raw, count = 0.0, 0.0, 0
    with noted(sim) as asked, timed(trainer, device) as parts:
        while whole < seconds:
            begin = finished(device)
            trainer.iteration(0.5)
            whole += finished(device) - begin
            raw += bare(sim, asked)
            count += 1
    sampler, steps = parts["sampler"], count * schedule.each
    learner = sum(spent for name, spent in parts.items() if name != "sampler") or whole - sampler
    spent_s = {"whole": whole, "raw_physics": raw, **parts}
    return {
        "samples_per_s": round(steps / whole, 1),
        "sampler_share": round(sampler / whole, 4),
        "learner_share": round(learner / whole, 4),  # overlapped, it counts both threads
        "ratio_to_raw_physics": round(raw / sampler, 4),
        "sampler_steps_per_s": round(steps / sampler, 1),
        "raw_physics_steps_per_s": round(steps / raw * sim.substeps, 1),
        "seconds_per_iteration": {name: round(value / count, 5) for name, value in spent_s.items()},
        "first_two_iterations_s": round(first_s, 2),
        "iterations": count,
        "steps_per_iteration": schedule.each,
        "num_envs": env.num_envs,
        "randomization": config.randomization.name,
        "threads": setting.threads,
        "torch_threads": setting.torch_threads,
        **{name: config.algo[name] for name in ("policy_batch", "compile", "overlap") if name in config.algo},
        **place,
    }


@contextmanager
def timed(trainer: Any, device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds spent in each of `SECTIONS` that the trainer has, counted while the context lasts.

    A GPU finishes each section before the next begins, so they are a little longer there than unwatched.
    """
    sections = {method: name for method, name in SECTIONS.items() if hasattr(trainer, method)}
    if "_act" in sections:
        sections.pop("collect", None)  # which is no more than `_act` and the replay
    spent = dict.fromkeys(sections.values(), 0.0)

    methods = {method: getattr(trainer, method) for method in sections}
    for method, function in methods.items():
        setattr(trainer, method, _Watched(function, spent, sections[method], device))
    yield spent
    for method, function in methods.items():
        setattr(trainer, method, function)


class _Watched:
    """A method, or an object that is called as one, whose calls add their seconds to spent[name]."""

    def __init__(self, method: Callable[..., Any], spent: dict[str, float], name: str, device: torch.device):
        self._method, self._spent, self._name, self._device = method, spent, name, device

    def __call__(self, *arguments: Any) -> Any:
        begin = finished(self._device)
        result = self._method(*arguments)
        self._spent[self._name] += finished(self._device) - begin
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)


class Asked(NamedTuple):
    """A control step that a simulator was asked for."""

    state: Tensor  # (n, size) the simulator's, before
    ctrl: Tensor  # (n, nu) [rad]
    previous: Tensor | None  # (n, nu) [rad] where the hold is of first order


@contextmanager
def noted(sim: Simulator) -> Iterator[list[Asked]]:
    """What the simulator is asked for while the context lasts."""
    asked: list[Asked] = []
    step = sim.step

    def noting(ctrl: Tensor, previous: Tensor | None = None) -> None:
        asked.append(Asked(sim.snapshot(), ctrl.clone(), None if previous is None else previous.clone()))
        step(ctrl, previous)

    sim.step = noting  # type: ignore[method-assign]
    yield asked
    sim.step = step  # type: ignore[method-assign]


def bare(sim: Simulator, asked: list[Asked]) -> float:
    """Seconds that the bare physics takes for what was `noted`, which is forgotten; the simulator is left as it was."""
    now, seconds = sim.snapshot(), 0.0
    for state, ctrl, previous in asked:
        sim.restore(state)
        begin = finished(sim.device)
        type(sim).step(sim, ctrl, previous)  # not the watched one
        seconds += finished(sim.device) - begin
    sim.restore(now)
    asked.clear()
    return seconds
