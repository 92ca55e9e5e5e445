"""Several learners of one policy (torch.distributed): what they average. Of one alone, everything
stays as it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
from torch import Tensor, distributed

from mocap_data.errors import InputError

# of a learner that waits for another, which may be judging or writing
PATIENCE = timedelta(minutes=30)

# how many learn together, and which of them this is; a process group of others is none of ours
_joined = (1, 0)


def count() -> int:
    """How many learn together."""
    return _joined[0]


def rank() -> int:
    """Which of them this is, from 0."""
    return _joined[1]


def meeting_place(host: str, learners: int) -> distributed.TCPStore:
    """Where they find each other, kept by the first of them; its `port` is what the others need."""
    return distributed.TCPStore(
        host, 0, learners, is_master=True, wait_for_workers=False, timeout=PATIENCE
    )


def join(store: distributed.Store, rank: int, learners: int, device: str) -> None:
    """Be one of so many learners; returns when all are there. device: of this one.

    Raises:
      InputError: in a process that torch.distributed is used in already.
    """
    global _joined
    if distributed.is_initialized():
        raise InputError(
            "several learners are processes of their own making; this one has a process group already"
        )
    kind = torch.device(device)
    if kind.type == "cuda":
        torch.cuda.set_device(kind)
    # its defaults are the group there is when it is imported; torch.optim does so sooner or later,
    # and the group, kept by them, outlives `leave`: its threads then abort the interpreter's end
    # (PyTorch's pull request 179291)
    importlib.import_module("torch.distributed.nn.functional")
    backend = "nccl" if kind.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=learners, timeout=PATIENCE
    )
    _joined = learners, rank


def leave() -> None:
    """Be alone again."""
    global _joined
    if _joined != (1, 0):
        _joined = 1, 0
        distributed.destroy_process_group()


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors of one type by their means over all learners, who call this with the same
    shapes."""
    if count() == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    distributed.all_reduce(flat)
    flat /= count()
    for tensor, mean in zip(
        tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True
    ):
        tensor.copy_(mean.view_as(tensor))


def average_gradients(weights: Iterable[Tensor]) -> None:
    """Replace gradients by their means over all learners; a weight that one of them does without
    has none there."""
    if count() == 1:
        return
    learned = [weight for weight in weights if weight.requires_grad]
    for weight in learned:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    average_([weight.grad for weight in learned if weight.grad is not None])
