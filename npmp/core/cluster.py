"""The connection to Ray (the extra `ray`)."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, one_line
from npmp.core import plugins

ROOT = str(Path(__file__).resolve().parents[2])  # for a checkout that is not installed


def connect(feature: str) -> Any:
    """Connect this process once to the cluster of RAY_ADDRESS, or to a new one on this machine.

    Args:
      feature: needs Ray, for the message if it is not installed.

    Returns: the module `ray`.

    Raises:
      InputError: if Ray is not installed or no cluster answers.
    """
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            f"{feature} needs the package ray: make install EXTRAS=ray, or pip install ray"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return ray
    environment: dict[str, Any] = {"env_vars": {"PYTHONPATH": ROOT, "MUJOCO_GL": "disable"}}
    address = os.environ.get("RAY_ADDRESS")
    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    # Ray passes it to a shell unquoted
    if not address:
        environment["py_executable"] = shlex.quote(sys.executable)
    try:
        ray.init(**where, runtime_env=environment, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        at = address or "this machine"
        raise InputError(f"no Ray cluster at {at}: {one_line(error)}") from error
    for module in plugins.loaded_tasks().values():
        ray.cloudpickle.register_pickle_by_value(module)
    return ray
