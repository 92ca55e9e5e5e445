"""Loggers of a run's metrics: TensorBoard and Weights & Biases."""

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
      InputError: if it is unknown, or its package is not installed.
    """
    check_available("logger", [logger], LOGGERS)
    if logger == "wandb" and importlib.util.find_spec("wandb") is None:
        raise InputError(
            "logger=wandb needs the package wandb: make install EXTRAS=wandb, or pip install wandb"
        )
    return logger


def open_logger(
    logger: str, folder: Path, *, settings: Mapping[str, Any], resume_env_steps: int | None
) -> Logger | None:
    """The logger of the run in `folder`; None for logger=none.

    Args:
      settings: the run's configuration, recorded by Weights & Biases.
      resume_env_steps: environment steps at the checkpoint to resume from; None for a new run.

    Raises:
      InputError: as `check`.
    """
    if check(logger) == "none":
        return None
    if logger == "tensorboard":
        return TensorBoard(folder, resume_env_steps)
    return WandB(folder, settings)


class TensorBoard:
    """Event files in FOLDER/tensorboard."""

    def __init__(self, folder: Path, resume_env_steps: int | None):
        """resume_env_steps: hide events of an earlier process after this many environment steps."""
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_env_steps is None else resume_env_steps + 1
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, metrics: Mapping[str, float], env_steps: int) -> None:
        """Log an iteration's finite metrics at its environment steps."""
        for key, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(key, value, env_steps)

    def flush(self) -> None:
        """Force the events to disk."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases in FOLDER/wandb, offline by default (WANDB_MODE); `wandb sync`
    uploads it.

    A resumed run keeps its id (FOLDER/wandb.json). Steps that it repeats after its checkpoint have
    equal metrics, which W&B ignores.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        """settings: recorded as the run's configuration."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run: Any = wandb.init(
            project="npmp",
            id=_run_id(folder / "wandb.json"),
            name=folder.name,
            dir=str(folder),
            config=dict(settings),
            resume="allow",
            mode=mode,
            settings=quiet,
        )

    def write(self, metrics: Mapping[str, float], env_steps: int) -> None:
        finite = {key: value for key, value in metrics.items() if math.isfinite(value)}
        self._run.log(finite, step=env_steps)

    def flush(self) -> None:
        """Nothing: W&B writes from another process."""

    def close(self) -> None:
        self._run.finish()


def _run_id(path: Path) -> str:
    """The run's id, stored in this file."""
    if not path.is_file():
        write_json(path, {"id": uuid.uuid4().hex[:12]})
    return str(json.loads(path.read_text())["id"])


Logger = TensorBoard | WandB
