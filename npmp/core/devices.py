"""Devices, and reproducible computation."""

from __future__ import annotations

import os
import random
import re

import numpy as np

from mocap_data.errors import InputError


def check_device(device: str) -> str:
    """`device` if it exists. Imports torch only for CUDA. Raises InputError."""
    if device == "cpu":
        return device
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise InputError(f"no device {device!r}; available: cpu, cuda, cuda:N")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        build = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        raise InputError(f"device={device}: torch has no CUDA device here{build}; use device=cpu")
    if int(device.partition(":")[2] or 0) >= count:
        raise InputError(
            f"no device {device!r}; available: cpu, " + ", ".join(f"cuda:{i}" for i in range(count))
        )
    return device


def has_native_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16. Without it torch's CPU kernels emulate it,
    several times slower than float32. False if torch does not know, or ONEDNN_MAX_CPU_ISA restricts
    oneDNN."""
    import torch

    if os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper() not in ("DEFAULT", "ALL"):
        return False
    # torch 2.10 and later
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    capabilities = {} if get_capabilities is None else get_capabilities()
    names = ("avx512_bf16", "amx_bf16", "bf16")
    return any(capabilities.get(name, False) for name in names)


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seed_everything(
    seed: int, *, device: str = "cpu", threads: int = 1, use_torch: bool = True
) -> None:
    """Seed python, numpy and torch; make torch deterministic with a fixed number of threads.

    With the same seed and thread count a run on the CPU is bit-equal. On CUDA, operations without a
    deterministic form warn.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: must be 0 to {2**32 - 1}")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - for libraries that use the global generator
    if not use_torch:
        return
    # cuBLAS reads it when it starts
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    # use_deterministic_algorithms would import torch's compiler, which takes seconds
    torch.set_deterministic_debug_mode("error" if device == "cpu" else "warn")
