"""`npmp skill info | wander | interpolate MODULE`: what a module is, where its prior leads, what
lies between two clips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import new_hdf5, write_json
from npmp import analysis, modules, ranges
from npmp.analysis.latents import ACTIVE_NATS, LatentUse
from npmp.analysis.wandering import summarize
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.experiments.backend import Simulating, motions_of, robot_of, robots_config_of
from npmp.experiments.command import Run, Verb, made_by
from npmp.experiments.terminal import console, say, table
from npmp.report import skill_page
from npmp.robots import Robot
from npmp.skill import SkillModule

BAR = 36  # characters of the longest bar: the chart is 80 columns wide at most


@dataclass(frozen=True, kw_only=True)
class _OfModule(Simulating):
    """What is asked of a skill module."""

    # a skill module: its folder, or a shipped one's name (npmp skill list)
    module: str
    # robots at once
    envs: int = 64
    # of setpoints, first_order or zero_order; null: as the module was trained
    hold: str | None = None
    # the folder for the figures (JSON), rollouts.h5 and report.html; null: only printed
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "envs")


@dataclass(frozen=True, kw_only=True)
class ModuleInfo(_OfModule):
    """What a skill module says of itself, and with data= what its latents carry.

    npmp skill info anymal_b_dog
    npmp skill info anymal_b_dog data=dog.h5 split=validation out=runs/read
    """

    # the motion dataset (HDF5) to track
    data: Path | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # control steps of each robot
    steps: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "steps")


@dataclass(frozen=True, kw_only=True)
class WanderModule(_OfModule):
    """Where a module's prior leads without a task, beside white noise.

    npmp skill wander anymal_b_dog out=runs/wander
    npmp skill wander runs/imitation/module data=motions.h5 randomization=paper
    """

    # the motion dataset (HDF5) whose random frames robots start from; null: the home pose
    data: Path | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # at most; what is up then counts with this time
    seconds: float = 20.0
    # robots of each kind in rollouts.h5 and on the page, the first ones
    shown: int = 8
    # a page with the replay; false: figures and rollouts.h5 only
    report: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "shown")
        ranges.above_zero(self, "seconds")


@dataclass(frozen=True, kw_only=True)
class InterpolateClips(_OfModule):
    """What lies between two clips' latents.

    npmp skill interpolate anymal_b_dog data=dog.h5 clips=[D1_053_KAN01_001_c02,D1_009_KAN01_001]
    out=runs/between"""

    # the motion dataset (HDF5) of the clips
    data: Path
    # two clips' names, of w = 0 and w = 1
    clips: tuple[str, str]
    # how many w from 0 to 1
    weights: int = 11
    # frames that are mixed: of equal stride phase (strides), of equal number (frames); auto:
    # strides where both clips have them
    align: str = "auto"
    # (1 - w) z_a + w z_b (linear), or the same over sqrt((1 - w)^2 + w^2) (variance)
    mix: str = "linear"
    # a page with the replay; false: figures and rollouts.h5 only
    report: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights < 2:
            raise ValueError(f"weights must be at least 2, got {self.weights}")


def opened(config: _OfModule) -> tuple[str, Robot, RobotBatchConfig]:
    """The module's name, its robot and what stands between the two. Raises InputError where they do
    not fit."""
    folder, robot = modules.find(config.module), robot_of(config)
    skill = SkillModule.load(folder)
    skill.check_robot(robot)
    return Path(config.module).name, robot, robots_config_of(config, skill, hold=config.hold)


# --- info


def run_info(config: ModuleInfo, run: Run) -> None:
    """The module's own words, and with data= what its latents carry."""
    name, robot, like = opened(config)
    figures = {"module": name} | analysis.describe(config.module)
    use = None
    if config.data is not None:
        use = analysis.latent_use(
            config.module,
            str(config.data),
            robot=robot,
            split=config.split,
            num_robots=config.envs,
            steps=config.steps,
            seed=run.seed,
            robots_config=like,
            threads=run.threads,
        )
        figures["latents"] = {
            "data": config.data.name,
            "split": config.split,
            "randomization": run.chosen["randomization"],
            "kl_nats_per_step": float(use.kl.sum()),
            "active_dimensions": use.active(),
            "active_above_nats": ACTIVE_NATS,
            "dimensions": latent_rows(use),
        }
    elif config.split is not None:
        raise InputError(f"split={config.split} chooses clips of data=..., which is not given")
    write_figures(run, "info.json", figures)
    show_description(figures)
    if use is not None:
        say("", *latent_chart(use))


def latent_rows(use: LatentUse) -> list[dict[str, float]]:
    """A mapping per dimension, the one that carries most first."""
    keys = {"kl_nats": use.kl, "std": use.std, "mean_share": use.mean_share}
    return [
        {"dimension": i, **{key: float(values[i]) for key, values in keys.items()}}
        for i in use.order
    ]


def latent_chart(use: LatentUse) -> list[str]:
    """Lines of a bar chart of KL per dimension, at most 80 columns wide."""
    most = max(float(use.kl.max()), 1e-9)
    lines = [
        f"KL to the prior {float(use.kl.sum()):.2f} nats/step; {use.active()} of "
        f"{len(use.kl)} dimensions above "
        f"{ACTIVE_NATS:g}",
        "std: of z, the prior's is 1; mean: the encoder mean's share of z's innovation",
        f"{'dim':>4} {'nats/step':<{BAR + 8}} {'std':>6} {'mean':>6}",
    ]
    for row in latent_rows(use):
        bar = "#" * round(BAR * row["kl_nats"] / most)
        lines.append(
            f"{'z' + str(row['dimension']):>4} "
            f"{bar + ' ' + format(row['kl_nats'], '.3f'):<{BAR + 8}}"
            f" {row['std']:>6.2f} {row['mean_share']:>6.2f}"
        )
    return lines


def show_description(figures: dict[str, Any]) -> None:
    """The module's own words, a line each."""
    training, sees, net = figures["training"], figures["encoder_sees"], figures["net"]
    sizes, file, joints = figures["parameters"], figures["file"], figures["joints"]
    plain = {name: value for name, value in training.items() if not isinstance(value, dict | list)}
    after = {name: f"{value:.3f}" for name, value in training.get("after", {}).items()}
    widths = {name: value for name, value in net.items() if name not in ("latent_dim", "alpha")}
    lines = {
        "module": figures["module"],
        "robot": f"{figures['robot']}, {len(joints)} joints: {', '.join(joints)}",
        "control": f"{figures['control_rate_hz']:g} Hz, physics {figures['physics_rate_hz']:g} Hz",
        "setpoints held": figures["hold"],
        "accelerometer": figures["accelerometer"],
        "latent": f"{figures['latent_dim']} dimensions, prior with alpha {figures['alpha']:g}",
        "decoder senses": ", ".join(f"{k} ({v})" for k, v in figures["decoder_senses"].items()),
        "encoder sees": f"{sees['features']} features, {sees['frames_ahead']} frames ahead",
        "networks": _pairs(widths),
        "parameters": f"encoder {sizes['encoder']:,}, decoder {sizes['decoder']:,}",
        "trained": _pairs(plain),
        "scores then": _pairs(after),
        "licence of the data": ", ".join(figures["licences"]) or "unknown",
        "file": f"{file['bytes']:,} bytes of {file['weights']}, sha256 {file['sha256']}",
        "made with": _pairs(figures["versions"]),
    }
    say(*(f"{name}: {value}" for name, value in lines.items() if value), wrap=True)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# --- wander


def run_wander(config: WanderModule, run: Run) -> None:
    """Robots on latents of the prior and on white noise."""
    name, robot, like = opened(config)
    motions = motions_of(config.data, robot, split=config.split)
    recorded = None if motions is None else analysis.Movement.recorded(motions, robot)
    trials = analysis.wander(
        config.module,
        motions,
        robot=robot,
        num_robots=config.envs,
        seconds=config.seconds,
        seed=run.seed,
        robots_config=like,
        threads=run.threads,
        shown=config.shown,
    )
    figures = {
        "module": name,
        "robot": robot.name,
        "starts": "home pose" if config.data is None else f"random frames of {config.data.name}",
        "split": config.split,
        "randomization": run.chosen["randomization"],
        "robots": config.envs,
        "seconds": next(iter(trials.values())).cap_s,
        "seed": run.seed,
        "latents": summarize(trials, recorded=recorded, seed=run.seed),
        **({} if recorded is None else {"recordings": recorded.summary()}),
    }
    write_figures(run, "wander.json", figures)
    if run.out is not None:
        shown = {
            f"{kind} {i}": (trial.qpos[:, i].numpy(), trial.up_frames(i))
            for kind, trial in trials.items()
            for i in range(trial.qpos.shape[1])
        }
        write_motions(run.out / "rollouts.h5", robot, shown, 1.0 / trials["prior"].dt)
        if config.report:
            about = made_by(run)
            skill_page.wandering(run.out / "report.html", robot, figures, trials, about, recorded)
    show_wandering(figures)
    where_it_is(config.report, run)


def show_wandering(figures: dict[str, Any]) -> None:
    """A line per kind of latents."""
    rows = []
    for kind, row in figures["latents"].items():
        ratio = row.get("prior_up_ratio")
        shown = (
            ""
            if ratio is None
            else f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        )
        keys = ("up_s_mean", "up_s_median", "up_to_the_end", "path_m", "speed_mps")
        like = " ".join(f"{share:.2f}" for share in row.get("overlap", {}).values())
        rows.append((kind, *(f"{row[key]:.2f}" for key in keys), shown, like))
    columns = (
        "latents",
        "up, mean s",
        "median s",
        "to the end",
        "path m",
        "m/s",
        "prior / this",
        "like recordings",
    )
    console().print(table(columns, rows, right=columns[1:], box=None))
    say(
        f"{figures['robots']} robots from the {figures['starts']}, {figures['seconds']:g} s "
        "at most; times of "
        "those still up then count as that, so means are lower bounds. prior / this: how "
        "many times as long the prior "
        "keeps them up, with 95 %; like recordings: shared area of the histograms of speed, "
        "turn and feet "
        "off the ground.",
        wrap=True,
    )


# --- interpolate


def run_interpolate(config: InterpolateClips, run: Run) -> None:
    """Robots on mixtures of two clips' latents."""
    name, robot, like = opened(config)
    names = config.clips
    result = analysis.interpolate(
        config.module,
        str(config.data),
        *names,
        robot=robot,
        weights=config.weights,
        align=config.align,
        mix=config.mix,
        copies=1 if run.chosen["randomization"] == "none" else config.envs,
        seed=run.seed,
        robots_config=like,
        threads=run.threads,
    )
    figures = {
        "module": name,
        "robot": robot.name,
        "data": config.data.name,
        "from": names[0],
        "to": names[1],
        "tracked_s": dict(zip(names, result.tracked_s, strict=True)),
        "aligned_by": result.aligned_by,
        "mix": config.mix,
        "randomization": run.chosen["randomization"],
        "seed": run.seed,
        "weights": result.rows(),
    }
    write_figures(run, "interpolation.json", figures)
    if run.out is not None:
        motions = {
            f"w {float(w):.2f}": (
                result.qpos[: round(float(s) / result.dt) + 1, i].numpy(),
                int(result.steps[i]) + 1,
            )
            for i, (w, s) in enumerate(zip(result.weights, result.seconds, strict=True))
        }
        write_motions(run.out / "rollouts.h5", robot, motions, 1.0 / result.dt)
        if config.report:
            skill_page.interpolation(
                run.out / "report.html", robot, figures, motions, 1.0 / result.dt, made_by(run)
            )
    show_interpolation(figures)
    where_it_is(config.report, run)


def show_interpolation(figures: dict[str, Any]) -> None:
    """A line per weight."""
    columns = ("w", "forward m/s", "lateral m/s", "yaw rad/s", "up s", "of s")
    keys = ("w", "forward_mps", "lateral_mps", "yaw_rate_rps", "up_s", "of_s")
    rows = [[f"{row[key]:.2f}" for key in keys] for row in figures["weights"]]
    console().print(table(columns, rows, right=columns, box=None))
    ends = ", ".join(
        f"w = {w}: {name} (tracked for {s:.1f} s)"
        for w, (name, s) in enumerate(figures["tracked_s"].items())
    )
    say(f"{ends}; mixed by {figures['aligned_by']}, {figures['mix']}.", wrap=True)


# --- files


def write_figures(run: Run, name: str, figures: dict[str, Any]) -> None:
    """OUT/NAME, where there is an OUT."""
    if run.out is not None:
        write_json(run.out / name, figures)


def write_motions(
    path: Path, robot: Robot, motions: dict[str, tuple[np.ndarray, int]], rate_hz: float
) -> None:
    """rollouts.h5: a group per robot with qpos (T, nq), rate_hz and up_frames, the frames until its
    fall."""
    with new_hdf5(path, track_order=True) as file:
        file.attrs["robot"] = robot.name
        file.attrs["joint_names"] = list(robot.joint_names)
        for name, (qpos, frames) in motions.items():
            group = file.create_group(name)
            group.attrs["rate_hz"], group.attrs["up_frames"] = rate_hz, min(frames, len(qpos))
            group.create_dataset("qpos", data=qpos, compression="gzip", compression_opts=1)


def where_it_is(report: bool, run: Run) -> None:
    """The line that says what was written, or how to have it written."""
    if run.out is None:
        say("out=FOLDER writes the figures, the motions and a page to watch them on.")
    else:
        say(str(run.out / ("report.html" if report else "rollouts.h5")))


_common: Any = {"out": "optional_folder", "positional": ("module",), "devices": ("cpu",)}
info = Verb("skill info", ModuleInfo, run_info, **_common)
wander = Verb("skill wander", WanderModule, run_wander, **_common)
interpolate = Verb("skill interpolate", InterpolateClips, run_interpolate, **_common)
