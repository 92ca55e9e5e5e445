"""Where a run's metrics go besides its csv files: TensorBoard or Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, check_available
from mocap_data.files import write_json

LOGGERS = ("tensorboard", "wandb", "none")


def check(logger: str) -> str:
    """The logger's name.

    Raises:
      InputError: for one that does not exist, or whose package is not installed.
    """
    check_available("logger", [logger], LOGGERS)
    if logger == "wandb" and importlib.util.find_spec("wandb") is None:
        raise InputError(
            "logger=wandb needs the package wandb: make install EXTRAS=wandb, or pip install wandb"
        )
    return logger


def open_logger(
    logger: str, folder: Path, *, settings: Mapping[str, Any], done: int | None
) -> Logger | None:
    """The board of the run in `folder`; None for logger=none.

    Args:
      settings: the run's configuration, for loggers that show it.
      done: environment steps at the checkpoint that the run goes on from; None for a new run.

    Raises:
      InputError: as `check`.
    """
    if check(logger) == "none":
        return None
    return TensorBoard(folder, done) if logger == "tensorboard" else WandB(folder, settings)


class TensorBoard:
    """Event files in FOLDER/tensorboard."""

    def __init__(self, folder: Path, done: int | None):
        """done: hide what an earlier process wrote after this many environment steps."""
        from torch.utils.tensorboard import SummaryWriter

        purge = None if done is None else done + 1
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, metrics: Mapping[str, float], env_steps: int) -> None:
        """One iteration's figures by environment steps; those that are no numbers are left out."""
        for key, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(key, value, env_steps)

    def flush(self) -> None:
        """Everything written so far is to be on the disk before this returns."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases, kept in FOLDER/wandb: offline unless WANDB_MODE says otherwise;
    `wandb sync` uploads it.

    A run that goes on keeps its id (FOLDER/wandb.json). What it repeats after its checkpoint are
    the same figures at the same steps, which W&B leaves out.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        """settings: shown as the run's configuration."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")  # what else it may be is wandb's to say
        self._run: Any = wandb.init(
            project="npmp",
            id=_kept_id(folder / "wandb.json"),
            name=folder.name,
            dir=str(folder),
            config=dict(settings),
            resume="allow",
            mode=mode,
            settings=quiet,
        )

    def write(self, metrics: Mapping[str, float], env_steps: int) -> None:
        kept = {key: value for key, value in metrics.items() if math.isfinite(value)}
        self._run.log(kept, step=env_steps)

    def flush(self) -> None:
        """Nothing: another process writes, and lives on for a moment when this one is killed."""

    def close(self) -> None:
        self._run.finish()


def _kept_id(path: Path) -> str:
    """The run's id: from its file, or a new one, kept there."""
    try:
        return str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        new = uuid.uuid4().hex[:12]
    write_json(path, {"id": new})
    return new


Logger = TensorBoard | WandB
