"""`npmp actuator fit | evaluate | show MODEL | import KIND`: models of real actuators, learned from
their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp.actuators import ActuatorLog, HeldOut, at_rate, read_log, write_log
from npmp.actuators.evaluation import Evaluation, evaluate
from npmp.actuators.fitting import FitConfig, fit
from npmp.actuators.importers import IMPORTERS
from npmp.actuators.log import doubts
from npmp.actuators.models import KINDS, PD, ActuatorModel, load
from npmp.experiments.common import (
    Run,
    above_zero,
    console,
    made_by,
    one_of,
    plain,
    progress_bar,
    say,
    table,
    verb,
)
from npmp.report import actuator_page
from npmp.settings import from_mapping

ACTIONS = ("fit", "evaluate", "show", "import")
FIGURES = ("rmse_nm", "rollout_rmse_nm", "baseline_rmse_nm", "torque_std_nm")
CURRENTS = ("current_rmse_a", "rollout_current_rmse_a", "baseline_current_rmse_a", "current_std_a")
ROWS_SHOWN = 12  # of recordings and actuators on the terminal; evaluation.json has all


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", *ACTIONS)
    if config.rate_hz is not None:
        above_zero(config, "rate_hz")
    {"fit": fit_model, "evaluate": evaluate_model, "show": show_model, "import": import_log}[
        str(config.action)
    ](config, run)
    return 0


# --- fit


def fit_model(config: DictConfig, run: Run) -> None:
    """D/actuator.json with its weights, and what it comes to on the part kept aside."""
    one_of(config, "model", *KINDS)
    given = plain(config)
    held = from_mapping(
        HeldOut,
        {
            "share": given["validation"],
            "recordings": given["validation_recordings"],
            "actuators": given["validation_actuators"],
        },
        at="validation",
    )
    settings = from_mapping(FitConfig, given["fitting"], at="fitting")
    path = _needed(config, "data")
    if run.out is None:
        raise InputError("npmp actuator fit needs out=FOLDER")
    log, digest = _log(config)
    for sentence in doubts(log):
        say(f"npmp: warning: {path.name}: {sentence}")
    first, last = log.split(held)
    about = {
        "data": path.name,
        "log_sha256": digest,
        "validation": asdict(held),
        "recordings": first.recordings,
        "seconds": round(first.seconds, 3),
        "settings": given["fitting"],
    }
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(f"fitting {config.model}", total=None)
        model = fit(
            str(config.model),
            first,
            settings,
            channels=given["channels"],
            seed=run.seed,
            about=about,
            progress=lambda done, of, loss: bar.update(task, completed=done, total=of),
        )
    judged = None if last is None else evaluate(model, last)
    if judged is not None:
        model.contract.training["after"] = {name: judged.figures[name] for name in FIGURES}
    for name in ("evaluation.json", "report.html"):  # of an earlier model
        (run.folder / name).unlink(missing_ok=True)
    model.save(run.folder)
    say(f"{run.folder}: {_words(model)}")
    if model.contract.baseline[0] < 0.0:
        say(
            "npmp: warning: the log's torque falls where its position error grows; has one of them the other sign?"
        )
    _tell(config, run, judged, "the part kept aside")


def _tell(config: DictConfig, run: Run, judged: Evaluation | None, part: str) -> None:
    """Write and print how well a model does."""
    if judged is None:
        return
    if run.out is not None:
        write_json(run.out / "evaluation.json", judged.figures)
        if config.report:
            actuator_page.judged(run.out / "report.html", judged, part, made_by(config, run.seed))
    show_figures(judged.figures)


def show_figures(figures: Mapping[str, Any]) -> None:
    """A line for all, and one for each recording and actuator."""
    rows: list[tuple[str, Mapping[str, float]]] = [("all", figures)]
    for what in ("actuators", "recordings"):
        if len(figures[what]) > 1:
            rows += list(figures[what].items())[:ROWS_SHOWN]
    columns = ("", "one step", "on its own", "constant gains", "std of torque")
    shown = [(name, *(f"{row[key]:.4g}" for key in FIGURES)) for name, row in rows]
    console().print(table(columns, shown, right=columns[1:], box=None, title="RMSE, Nm"))
    if CURRENTS[0] in figures:
        words = (*columns[1:4], "its std")
        of_current = [
            f"{word} {figures[key]:.4g}" for key, word in zip(CURRENTS, words, strict=True)
        ]
        say(f"RMSE of the current, A: {', '.join(of_current)}")
    after = figures["rollout_rmse_nm_after_s"]
    if after:
        say(
            "on its own, Nm after s: "
            + ", ".join(f"{value:.3g} after {s}" for s, value in after.items())
        )
    if (position := figures.get("position_mae_rad")) is not None:
        say(
            f"position of the log's pendulums from the commands alone: off by {position:.3g} rad in the mean"
        )
    if latents := figures.get("latents"):
        told = ""
        if "told_apart" in latents:
            told = f"{latents['told_apart']:.0%} of traces and {latents['told_apart_by_all_traces']:.0%} of actuators "
            told += "are told apart; "
        likely = ", ".join(
            f"{name} {value:.2f}" for name, value in latents["nats_per_sample"].items()
        )
        say(f"latents: {told}nats per sample under samples of N(0, I): {likely}", wrap=True)


# --- evaluate, show, import


def evaluate_model(config: DictConfig, run: Run) -> None:
    """E/evaluation.json and a page."""
    one_of(config, "split", "validation", "all")
    if config.model in KINDS:
        raise InputError("npmp actuator evaluate needs model=FOLDER, what npmp actuator fit wrote")
    model = load(str(config.model))
    log, digest = _log(config)
    if config.split == "validation":
        training = model.contract.training
        if training.get("log_sha256", digest) != digest:
            raise InputError(
                f"{config.data} is not the log that {config.model} was fitted to; split=all judges on it"
            )
        _, last = log.split(
            from_mapping(HeldOut, training.get("validation", {}), at=f"{config.model}: validation")
        )
        if last is None:
            raise InputError(
                f"{config.model} was fitted with nothing kept aside; split=all judges it on the whole log"
            )
        log = last
    judged = evaluate(model, log)
    part = "the whole log" if config.split == "all" else "the part kept aside"
    _tell(config, run, judged, part)


def show_model(config: DictConfig, run: Run) -> None:
    """A model's own words."""
    if config.subject is None:
        raise InputError("npmp actuator show needs a model: its folder")
    model = load(str(config.subject))
    say(_words(model))
    contract, training = model.contract, model.contract.training
    lines = [
        ("actuators", ", ".join(contract.actuators)),
        (
            "takes",
            ", ".join(
                ["effort" if contract.gains else "position error", "velocity", *contract.channels]
            ),
        ),
        (
            "gains of the log",
            f"kp {contract.kp:g}, kd {contract.kd:g}, limit {contract.limit:g}" * contract.gains,
        ),
        (
            "fitted to",
            f"{training.get('data', '')}, {training.get('seconds', 0):g} s, seed {training.get('seed', 0)}",
        ),
        (
            "kept aside",
            ", ".join(
                f"{key} {value}" for key, value in training.get("validation", {}).items() if value
            ),
        ),
        (
            "there, Nm",
            ", ".join(f"{key} {value:.4g}" for key, value in training.get("after", {}).items()),
        ),
        (
            "source",
            f"{training.get('source') or 'unknown'}; licence of the data: {contract.licence or 'unknown'}",
        ),
    ]
    if isinstance(model, PD):
        told = {name: f"{value:.4g}" for name, value in asdict(model.parameters_of).items()}
        lines.append(
            (
                "closed form",
                ", ".join(f"{k} {v}" for k, v in told.items()) + f", delay {int(model.delay)}",
            )
        )
    say(*(f"{name}: {value}" for name, value in lines if value), wrap=True)


def _words(model: ActuatorModel) -> str:
    contract = model.contract
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    return f"{contract.kind} of {len(contract.actuators)} actuators at {contract.rate_hz:g} Hz, {numbers:,} numbers"


def import_log(config: DictConfig, run: Run) -> None:
    """A log of our format of a public recording."""
    kinds = ", ".join(IMPORTERS)
    if config.subject not in IMPORTERS:
        raise InputError(
            f"npmp actuator import needs one of {kinds}, got {config.subject or 'none'}"
        )
    if run.out is None or run.out.suffix != ".npz":
        raise InputError("npmp actuator import needs out=FILE.npz")
    source = _needed(config, "source")
    if run.out.exists() and source.exists() and run.out.samefile(source):
        raise InputError(f"out={run.out} is the source; choose another file")
    log = IMPORTERS[str(config.subject)](source)
    write_log(run.out, log)
    say(
        f"{run.out}: {len(log.recordings)} recordings of {len(log.actuators)} actuators, {log.seconds:.0f} s at "
        f"{log.rate_hz:g} Hz; licence: {log.licence}"
    )


def _log(config: DictConfig) -> tuple[ActuatorLog, str]:
    """The log of `data` at `rate_hz`, and the digest of what is in the file."""
    log = read_log(_needed(config, "data"))
    return log if config.rate_hz is None else at_rate(log, float(config.rate_hz)), log.digest()


def _needed(config: DictConfig, key: str) -> Path:
    """A path that the action cannot do without. Raises InputError."""
    if config[key] is None:
        raise InputError(f"npmp actuator {config.action} needs {key}=...")
    return Path(str(config[key]))


_folder = verb(
    "actuator", run, out="optional_folder", positional=("action", "subject"), devices=("cpu",)
)
_file = verb(
    "actuator", run, out="optional_file", positional=("action", "subject"), devices=("cpu",)
)


def main(arguments: Sequence[str] | None = None) -> int:
    """out= is a file for import, a folder for the rest."""
    given = list(arguments or ())
    return (_file if {"import", "action=import"} & set(given) else _folder)(arguments)
