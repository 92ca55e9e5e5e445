"""`npmp actuator fit | evaluate | import KIND`: models of real actuators, learned from logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.progress import MofNCompleteColumn

from mocap_data.errors import InputError, check_available
from mocap_data.files import write_json
from npmp.actuators import ActuatorLog, HeldOut, read_log, write_log
from npmp.actuators.actuator_fit import FitConfig
from npmp.actuators.actuator_fit import fit as fit_to
from npmp.actuators.actuator_log import at_rate, unit_warnings
from npmp.actuators.evaluation import Evaluation
from npmp.actuators.evaluation import evaluate as errors_of
from npmp.actuators.importers import IMPORTERS
from npmp.actuators.models import KINDS, load
from npmp.core import ranges
from npmp.core.settings import from_mapping, to_plain
from npmp.experiments.command import NOW, Computing, Keys, Run, Verb, provenance_of
from npmp.experiments.terminal import progress_bar, say, show_table, warn
from npmp.view.report import actuator_page

FIGURES = ("rmse_nm", "rollout_rmse_nm", "baseline_rmse_nm", "torque_std_nm")
CURRENTS = ("current_rmse_a", "rollout_current_rmse_a", "baseline_current_rmse_a", "current_std_a")
ROWS_SHOWN = 12  # rows per table in the terminal; evaluation.json has all


@dataclass(frozen=True, kw_only=True)
class _OfLog(Computing):
    """Keys of commands on a log."""

    # the log (.npz, .csv, or a ROS bag with /joint_states and commands, see docs/actuators.md)
    data: Path
    # rate to resample the log to, that of the physics which will use the model; null: the log's
    rate_hz: float | None = None
    # a page with predicted against measured torque
    report: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.above_zero(self, "rate_hz")


@dataclass(frozen=True, kw_only=True)
class FitActuator(_OfLog):
    """Learn a joint's torque as a function of its command and motion, from a log of a real one.

    npmp actuator fit data=knee.npz model=conv out=runs/knee
    npmp actuator fit data=arm.npz validation.share=0 validation.recordings=[chirp_sweep,prbs_*]
    out=runs/arm"""

    # pd: closed form; hybrid: pd with a correcting network; mlp; conv: recurrent on its torque;
    # vae: mlp with a latent per actuator
    model: str = "mlp"
    # the held-out part, to evaluate the model on
    validation: HeldOut = field(default_factory=HeldOut)
    # inputs in addition to effort and velocity: temperature, voltage
    channels: list[str] = field(default_factory=list)
    # settings of the fit
    fitting: FitConfig = field(default_factory=FitConfig)
    # the model's folder
    out: Path | None = Path(f"runs/actuator/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_available("model", [self.model], KINDS)


@dataclass(frozen=True, kw_only=True)
class EvaluateActuator(_OfLog):
    """Evaluate a model on a log.

    npmp actuator evaluate model=runs/knee data=knee.npz split=validation out=runs/knee_evaluation
    """

    # the folder of a fitted model (npmp actuator fit)
    model: Path
    # part of the log: validation (held out by the fit), or all
    split: Literal["validation", "all"] = "validation"
    # the folder for evaluation.json and report.html; null: print only
    out: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ImportLog(Keys):
    """Convert a public recording to a log.

    npmp actuator import hwangbo source=hwangbo_anymal_knee.npz out=knee.npz
    npmp actuator import anydrive source=anydrive_v3_lstm.npz out=anydrive.npz
    """

    # sage, bam, hwangbo or anydrive
    kind: str
    # the public recording or network
    source: Path
    # the log to write, FILE.npz
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_available("kind of recording", [self.kind], IMPORTERS)
        if self.out is None or self.out.suffix != ".npz":
            raise InputError("npmp actuator import needs out=FILE.npz")


# --- fit


def fit_model(config: FitActuator, run: Run) -> None:
    """Fit a model, write it, and evaluate it on the held-out part."""
    held = config.validation
    path = config.data
    log, digest = _log(config)
    for sentence in unit_warnings(log):
        warn(f"warning: {path.name}: {sentence}")
    first, last = log.split(held)
    record = {
        "data": path.name,
        "log_sha256": digest,
        "validation": asdict(held),
        "recordings": first.recordings,
        "seconds": round(first.seconds, 3),
        "settings": to_plain(config.fitting),
    }
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(f"fitting {config.model}", total=None)
        model = fit_to(
            config.model,
            first,
            config.fitting,
            channels=config.channels,
            seed=run.seed,
            about=record,
            progress=lambda done, of, loss: bar.update(task, completed=done, total=of),
        )
    evaluation = None if last is None else errors_of(model, last)
    if evaluation is not None:
        model.contract.training["after"] = {name: evaluation.figures[name] for name in FIGURES}
    for name in ("evaluation.json", "report.html"):  # delete the page of an earlier model
        (run.folder / name).unlink(missing_ok=True)
    model.save(run.folder)
    say(f"{run.folder}: {model.summary()}")
    if model.contract.baseline[0] < 0.0:
        warn(
            "warning: torque and position error are negatively correlated; is the sign of one "
            "wrong?"
        )
    _report(config, run, evaluation, "the held-out part")


def _report(config: _OfLog, run: Run, evaluation: Evaluation | None, part: str) -> None:
    """Evaluate a model; write and print the errors."""
    if evaluation is None:
        return
    if run.out is not None:
        write_json(run.out / "evaluation.json", evaluation.figures)
        if config.report:
            actuator_page.write(run.out / "report.html", evaluation, part, provenance_of(run))
    show_figures(evaluation.figures)


def show_figures(figures: Mapping[str, Any]) -> None:
    """Print the errors in total, and per recording and actuator."""
    rows: list[tuple[str, Mapping[str, float]]] = [("all", figures)]
    for kind in ("actuators", "recordings"):
        if len(figures[kind]) > 1:
            rows += list(figures[kind].items())[:ROWS_SHOWN]
    columns = ("", "one step", "on its own", "constant gains", "std of torque")
    formatted = [(name, *(f"{row[key]:.4g}" for key in FIGURES)) for name, row in rows]
    show_table(columns, formatted, right=columns[1:], box=None, title="RMSE, Nm")
    if CURRENTS[0] in figures:
        words = (*columns[1:4], "its std")
        pairs = zip(words, CURRENTS, strict=True)
        current = ", ".join(f"{word} {figures[key]:.4g}" for word, key in pairs)
        say(f"RMSE of the current, A: {current}")
    if after := figures["rollout_rmse_nm_after_s"]:
        errors = ", ".join(f"{value:.3g} after {s}" for s, value in after.items())
        say(f"free-running RMSE, Nm after s: {errors}")
    if (position := figures.get("position_mae_rad")) is not None:
        say(f"pendulums simulated from the commands: mean position error {position:.3g} rad")


# --- evaluate, import


def evaluate_model(config: EvaluateActuator, run: Run) -> None:
    """Write OUT/evaluation.json and a page."""
    model = load(config.model)
    log, digest = _log(config)
    if config.split == "validation":
        training = model.contract.training
        if training.get("log_sha256", digest) != digest:
            raise InputError(
                f"{config.data} differs from the log that {config.model} was fitted to; split=all "
                "evaluates on all of it"
            )
        at = f"{config.model}: validation"
        _, kept = log.split(from_mapping(HeldOut, training.get("validation", {}), at=at))
        if kept is None:
            raise InputError(
                f"{config.model} was fitted without held-out data; split=all evaluates it on the "
                "whole log"
            )
        log = kept
    part = "the whole log" if config.split == "all" else "the held-out part"
    _report(config, run, errors_of(model, log), part)


def import_recording(config: ImportLog, run: Run) -> None:
    """Convert a public recording to npmp's log format."""
    source = config.source
    out = run.out
    assert out is not None  # see `Import`
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"out={out} is the source; choose another file")
    log = IMPORTERS[config.kind](source)
    write_log(out, log)
    say(
        f"{out}: {len(log.recordings)} recordings of {len(log.actuators)} actuators, "
        f"{log.seconds:.0f} s at {log.rate_hz:g} Hz; licence: {log.licence}"
    )


def _log(config: _OfLog) -> tuple[ActuatorLog, str]:
    """Read the log `data` at `rate_hz`; also the digest of the file's content."""
    log = read_log(config.data)
    return log if config.rate_hz is None else at_rate(log, config.rate_hz), log.digest()


_cpu: Any = {"devices": ("cpu",)}
fit = Verb("actuator fit", FitActuator, fit_model, **_cpu)
evaluate = Verb(
    "actuator evaluate", EvaluateActuator, evaluate_model, out="optional_folder", **_cpu
)
import_log = Verb(
    "actuator import", ImportLog, import_recording, out="file", positional=("kind",), **_cpu
)
