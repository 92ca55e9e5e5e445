"""`npmp skill info | wander | interpolate MODULE`: what a module is, where its prior leads, what
lies between two clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from mocap_data.errors import InputError
from mocap_data.files import new_hdf5, write_json
from npmp import analysis, modules, robots
from npmp.analysis.latents import ACTIVE_NATS, LatentUse
from npmp.analysis.wandering import summarize
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.experiments.backend import choices_of_clips, motions_of, robots_config_of
from npmp.experiments.common import (
    Run,
    above_zero,
    at_least,
    console,
    made_by,
    one_of,
    say,
    table,
    verb,
)
from npmp.report import skill_page
from npmp.robots import Robot
from npmp.skill import SkillModule

ACTIONS = ("info", "wander", "interpolate")
BAR = 36  # characters of the longest bar: the chart is 80 columns wide at most


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", *ACTIONS)
    at_least(config, envs=1, steps=1, weights=2, shown=1)
    above_zero(config, "seconds")
    folder = modules.find(str(config.module))
    skill, robot = SkillModule.load(folder), robots.load(config.robot.name)
    skill.check_robot(robot)
    if choices_of_clips(config)["split"] is not None and config.action == "interpolate":
        raise InputError(
            f"split={config.split}: npmp skill interpolate takes two clips by name, from= and to="
        )
    like = robots_config_of(config, skill)
    {"info": info, "wander": wander, "interpolate": interpolate}[str(config.action)](
        config, run, robot, like
    )
    return 0


# --- info
# -------------------------------------------------------------------------------------------------------------


def info(config: DictConfig, run: Run, robot: Robot, like: RobotBatchConfig) -> None:
    """The module's own words, and with data= what its latents carry."""
    figures = {"module": Path(str(config.module)).name} | analysis.describe(str(config.module))
    use = None
    if config.data is not None:
        use = analysis.latent_use(
            str(config.module), str(config.data), robot=robot, split=config.split, num_robots=config.envs,
            steps=config.steps, seed=run.seed, robots_config=like, threads=run.threads,
        )  # fmt: skip
        figures["latents"] = {
            "data": Path(str(config.data)).name,
            "split": config.split,
            "randomization": config.randomization.name,
            "kl_nats_per_step": float(use.kl.sum()),
            "active_dimensions": use.active(),
            "active_above_nats": ACTIVE_NATS,
            "dimensions": latent_rows(use),
        }
    write_figures(run, "info.json", figures)
    show_description(figures)
    if use is not None:
        print()
        print("\n".join(latent_chart(use)))


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
        f"KL to the prior {float(use.kl.sum()):.2f} nats/step; {use.active()} of {len(use.kl)} dimensions above "
        f"{ACTIVE_NATS:g}",
        "std: of z, the prior's is 1; mean: the encoder mean's share of z's innovation",
        f"{'dim':>4} {'nats/step':<{BAR + 8}} {'std':>6} {'mean':>6}",
    ]
    for row in latent_rows(use):
        bar = "#" * round(BAR * row["kl_nats"] / most)
        lines.append(
            f"{'z' + str(row['dimension']):>4} {bar + ' ' + format(row['kl_nats'], '.3f'):<{BAR + 8}}"
            f" {row['std']:>6.2f} {row['mean_share']:>6.2f}"
        )
    return lines


def show_description(figures: dict[str, Any]) -> None:
    """The module's own words, a line each."""
    training, sees = figures["training"], figures["encoder_sees"]
    senses = ", ".join(f"{name} ({width})" for name, width in figures["decoder_senses"].items())
    sizes, net, file = figures["parameters"], figures["net"], figures["file"]
    lines = [
        ("module", figures["module"]),
        (
            "robot",
            f"{figures['robot']}, {len(figures['joints'])} joints: {', '.join(figures['joints'])}",
        ),
        (
            "rates",
            f"control {figures['control_rate_hz']:g} Hz, physics {figures['physics_rate_hz']:g} Hz",
        ),
        ("setpoints held", figures["hold"]),
        ("accelerometer", figures["accelerometer"]),
        (
            "latent",
            f"{figures['latent_dim']} dimensions, AR(1) prior with alpha {figures['alpha']:g}",
        ),
        ("decoder senses", senses),
        (
            "encoder sees",
            f"{sees['features']} features, {sees['frames_ahead']} frames of the reference ahead",
        ),
        (
            "networks",
            ", ".join(
                f"{name} {value}"
                for name, value in net.items()
                if name not in ("latent_dim", "alpha")
            ),
        ),
        ("parameters", f"encoder {sizes['encoder']:,}, decoder {sizes['decoder']:,}"),
        (
            "trained",
            ", ".join(
                f"{name} {value}"
                for name, value in training.items()
                if not isinstance(value, dict | list)
            ),
        ),
        (
            "scores then",
            ", ".join(f"{name} {value:.3f}" for name, value in training.get("after", {}).items()),
        ),
        ("licence of the data", ", ".join(figures["licences"]) or "unknown"),
        ("file", f"{file['bytes']:,} bytes of {file['weights']}, sha256 {file['sha256']}"),
        ("made with", ", ".join(f"{name} {value}" for name, value in figures["versions"].items())),
    ]
    say(*(f"{name}: {value}" for name, value in lines if value), wrap=True)


# --- wander
# -----------------------------------------------------------------------------------------------------------


def wander(config: DictConfig, run: Run, robot: Robot, like: RobotBatchConfig) -> None:
    """Robots on latents of the prior and on white noise."""
    motions = motions_of(config, robot)
    recorded = None if motions is None else analysis.Movement.recorded(motions, robot)
    trials = analysis.wander(
        str(config.module), motions, robot=robot,
        num_robots=config.envs, seconds=config.seconds, seed=run.seed, robots_config=like, threads=run.threads,
        shown=config.shown,
    )  # fmt: skip
    figures = {
        "module": Path(str(config.module)).name,
        "robot": robot.name,
        "starts": "home pose"
        if config.data is None
        else f"random frames of {Path(str(config.data)).name}",
        "split": config.split,
        "randomization": config.randomization.name,
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
            about = made_by(config, run.seed)
            skill_page.wandering(run.out / "report.html", robot, figures, trials, about, recorded)
    show_wandering(figures)
    where_it_is(config, run)


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
        f"{figures['robots']} robots from the {figures['starts']}, {figures['seconds']:g} s at most; times of "
        "those still up then count as that, so means are lower bounds. prior / this: how many times as long the prior "
        "keeps them up, with 95 %; like recordings: shared area of the histograms of speed, turn and feet "
        "off the ground.",
        wrap=True,
    )


# --- interpolate
# ------------------------------------------------------------------------------------------------------


def interpolate(config: DictConfig, run: Run, robot: Robot, like: RobotBatchConfig) -> None:
    """Robots on mixtures of two clips' latents."""
    for key in ("data", "from", "to"):
        if config[key] is None:
            raise InputError(
                f"npmp skill interpolate needs {key}=..., e.g. data=motions.h5 from=CLIP to=CLIP"
            )
    names = str(config["from"]), str(config["to"])
    result = analysis.interpolate(
        str(config.module), str(config.data), *names, robot=robot, weights=config.weights, align=config.align,
        mix=config.mix,
        copies=1 if config.randomization.name == "none" else config.envs, seed=run.seed, robots_config=like,
        threads=run.threads,
    )  # fmt: skip
    figures = {
        "module": Path(str(config.module)).name,
        "robot": robot.name,
        "data": Path(str(config.data)).name,
        "from": names[0],
        "to": names[1],
        "tracked_s": dict(zip(names, result.tracked_s, strict=True)),
        "aligned_by": result.aligned_by,
        "mix": config.mix,
        "randomization": config.randomization.name,
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
                run.out / "report.html",
                robot,
                figures,
                motions,
                1.0 / result.dt,
                made_by(config, run.seed),
            )
    show_interpolation(figures)
    where_it_is(config, run)


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
# ------------------------------------------------------------------------------------------------------------


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


def where_it_is(config: DictConfig, run: Run) -> None:
    """The line that says what was written, or how to have it written."""
    if run.out is None:
        print("out=FOLDER writes the figures, the motions and a page to watch them on.")
    else:
        say(str(run.out / ("report.html" if config.report else "rollouts.h5")))


main = verb("skill", run, out="optional_folder", positional=("action", "module"), devices=("cpu",))
