"""What several learners average, in as many processes (gloo)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing, nn

from npmp import parallel
from npmp.rl import popart
from npmp.rl.learner import VMPOConfig, VMPOLearner
from npmp.world_model.fitting import descend


def test_one_alone_averages_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    parallel.average_gradients([weight])
    parallel.average_([value := torch.tensor([3.0])])
    assert weight.grad is None and value.item() == 3.0 and (parallel.count(), parallel.rank()) == (1, 0)


def _learner(rank: int, place: str, out: str) -> None:
    torch.set_num_threads(1)
    parallel.join(distributed.FileStore(place, 2), rank, 2, "cpu")
    found = {"count": torch.tensor([parallel.count(), parallel.rank()])}
    # both take a step down the mean of their gradients: 2 w x^2 of x = 1 and 3 at w = 1, so 10, here cut to 5
    module = nn.Linear(1, 1, bias=False)
    unused = module.register_parameter("unused", nn.Parameter(torch.ones(1)))
    assert unused is None
    nn.init.ones_(module.weight)
    loss = module(torch.tensor([[1.0 + 2.0 * rank]])).square().sum() + (module.unused.sum() if rank else 0.0)
    norm = descend(loss, module, 5.0, torch.optim.SGD(module.parameters(), lr=0.1))
    found |= {"weight": module.weight.detach(), "unused": module.unused.detach(), "norm": torch.tensor(norm)}
    # one of them has no number: neither takes a step
    loss = module(torch.tensor([[float("nan") if rank else 1.0]])).sum()
    descend(loss, module, 5.0, torch.optim.SGD(module.parameters(), lr=0.1))
    found["kept"] = module.weight.detach()
    # the moments of the returns of both
    critic = nn.Module()
    critic.value_head = nn.Linear(1, 1)
    learner = VMPOLearner(nn.Linear(1, 1), critic, VMPOConfig())
    returns = torch.tensor([[[0.0]], [[2.0]]]) if rank == 0 else torch.tensor([[[5.0]], [[9.0]]])
    with torch.no_grad():
        learner._update_popart(returns, torch.ones(2, 1, dtype=torch.bool))
    found |= {"mean": learner._popart.mean, "variance": learner._popart.variance}
    save_file(found, Path(out) / f"{rank}.safetensors")
    parallel.leave()


@pytest.mark.slow
def test_two_learners_take_the_same_step(tmp_path: Path) -> None:
    multiprocessing.spawn(_learner, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert first["count"].tolist() == [2, 0] and second["count"].tolist() == [2, 1]
    for name in ("weight", "unused", "norm", "kept", "mean", "variance"):
        assert torch.equal(first[name], second[name]), name
    norm = (10.0**2 + 0.5**2) ** 0.5  # of `unused`, 1 with one and none with the other
    assert first["norm"].item() == pytest.approx(norm)
    assert first["weight"].item() == pytest.approx(1.0 - 0.1 * 10.0 * 5.0 / norm)
    assert first["unused"].item() == pytest.approx(1.0 - 0.1 * 0.5 * 5.0 / norm)
    assert torch.equal(first["kept"], first["weight"])
    both = torch.tensor([0.0, 2.0, 5.0, 9.0])
    whole = popart.update_stats(
        popart.initial_stats(1),
        both.reshape(4, 1, 1),
        torch.ones(4, 1, dtype=torch.bool),
        VMPOConfig().popart_step_size,
    )
    assert first["mean"].item() == pytest.approx(both.mean().item()) == pytest.approx(whole.mean.item())
    assert first["variance"].item() == pytest.approx(whole.variance.item())
