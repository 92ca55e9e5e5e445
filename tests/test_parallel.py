"""What several learners average, in as many processes (gloo)."""

from __future__ import annotations

import importlib.util
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing, nn

from mocap_data.store import MotionSet
from npmp import parallel
from npmp.imitation import MOVMPOConfig, MOVMPOTrainer, PPOConfig, PPOTrainer
from npmp.nets import NetConfig
from npmp.rl import popart
from npmp.rl.gradients import descend
from npmp.rl.learner import VMPOConfig, VMPOLearner
from npmp.robots import load
from npmp.world_model.trainer import WorldModelConfig, WorldModelTrainer
from tests.environments import imitation_env

STEP = 0.3
RETURNS = [[0.0, 2.0, 5.0, 9.0], [1.0, 1.5, -3.0, 4.0], [7.0, 8.0, 2.0, 2.5]]
NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
TINY = WorldModelConfig(
    collect_steps=4, replay_steps=24, warmup_steps=12, model_hidden=(16,), model_updates=1, model_batch=16, window=4,
    policy_updates=1, policy_batch=8, horizon=(3, 5), prior_share=0.3, prior_steps=4, rejoin_rate=5.0,
)  # fmt: skip
MO_TINY = MOVMPOConfig(unroll=6, critic_hidden=(16,))
PPO_TINY = PPOConfig(unroll=6, epochs=2, mini_batches=2, critic_hidden=(16,))


def test_one_alone_averages_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    parallel.average_gradients([weight])
    parallel.average_([value := torch.tensor([3.0])])
    assert (
        weight.grad is None
        and value.item() == 3.0
        and (parallel.count(), parallel.rank()) == (1, 0)
    )


def _learner(rank: int, place: str, out: str) -> None:
    torch.set_num_threads(1)
    parallel.join(distributed.FileStore(place, 2), rank, 2, "cpu")
    found = {"count": torch.tensor([parallel.count(), parallel.rank()])}
    # both take a step down the mean of their gradients: 2 w x^2 of x = 1 and 3 at w = 1, so 10,
    # here cut to 5
    module = nn.Linear(1, 1, bias=False)
    unused = module.register_parameter("unused", nn.Parameter(torch.ones(1)))
    assert unused is None
    nn.init.ones_(module.weight)
    loss = module(torch.tensor([[1.0 + 2.0 * rank]])).square().sum() + (
        module.unused.sum() if rank else 0.0
    )
    norm = descend(loss, module, 5.0, torch.optim.SGD(module.parameters(), lr=0.1))
    found |= {"weight": module.weight.detach().clone(), "unused": module.unused.detach().clone()}
    found["norm"] = torch.tensor(norm)
    # one of them has no number: neither takes a step
    loss = module(torch.tensor([[float("nan") if rank else 1.0]])).sum()
    descend(loss, module, 5.0, torch.optim.SGD(module.parameters(), lr=0.1))
    found["kept"] = module.weight.detach().clone()
    # the moments of the returns of both, three times
    critic = nn.Module()
    critic.value_head = nn.Linear(1, 1)
    nn.init.ones_(critic.value_head.weight)
    learner = VMPOLearner(nn.Linear(1, 1), critic, VMPOConfig(popart_step_size=STEP))
    with torch.no_grad():
        for returns in RETURNS:
            own = torch.tensor(returns[2 * rank : 2 * rank + 2]).reshape(2, 1, 1)
            learner._update_popart(own, torch.ones(2, 1, dtype=torch.bool))
    found |= {"mean": learner._popart.mean, "variance": learner._popart.variance}
    found["head"] = critic.value_head.weight.detach().clone()
    group = weakref.ref(distributed.group.WORLD)
    parallel.leave()
    found["gone"] = torch.tensor(group() is None)
    save_file(found, Path(out) / f"{rank}.safetensors")


@pytest.mark.slow
def test_two_learners_take_the_same_step(tmp_path: Path) -> None:
    multiprocessing.spawn(_learner, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert first["count"].tolist() == [2, 0] and second["count"].tolist() == [2, 1]
    # with its threads, which else abort the interpreter's end, now and then
    assert first["gone"] and second["gone"]
    for name in ("weight", "unused", "norm", "kept", "mean", "variance"):
        assert torch.equal(first[name], second[name]), name
    norm = (10.0**2 + 0.5**2) ** 0.5  # of `unused`, 1 with one and none with the other
    assert first["norm"].item() == pytest.approx(norm)
    assert first["weight"].item() == pytest.approx(1.0 - 0.1 * 10.0 * 5.0 / norm)
    assert first["unused"].item() == pytest.approx(1.0 - 0.1 * 0.5 * 5.0 / norm)
    assert torch.equal(first["kept"], first["weight"])
    whole = popart.initial_stats(1)
    for returns in RETURNS:  # of both as one batch
        valid = torch.ones(4, 1, dtype=torch.bool)
        whole = popart.update_stats(whole, torch.tensor(returns).reshape(4, 1, 1), valid, STEP)
    assert first["mean"].item() == pytest.approx(whole.mean.item(), rel=1e-5)
    assert first["variance"].item() == pytest.approx(whole.variance.item(), rel=1e-5)
    assert first["head"].item() == pytest.approx(1.0 / popart.std(whole).item(), rel=1e-5)


def _iterations(rank: int, place: str, out: str, motions: MotionSet) -> None:
    """Two iterations of every trainer, from the same weights on other experience."""
    torch.set_num_threads(1)
    robot = load("anymal_b")
    trainers: dict[str, Any] = {
        "world_model": WorldModelTrainer(imitation_env(robot, motions, 12), NET, TINY),
        "mo_vmpo": MOVMPOTrainer(imitation_env(robot, motions, 8), NET, MO_TINY),
    }
    if importlib.util.find_spec("rsl_rl") is not None:
        trainers["ppo"] = PPOTrainer(imitation_env(robot, motions, 8), NET, PPO_TINY)
    trainers["world_model"].warm_up()
    parallel.join(distributed.FileStore(place, 2), rank, 2, "cpu")
    for name, trainer in trainers.items():
        trainer.generator.manual_seed(100 + rank)
        figures = [trainer.iteration(i / 8) for i in range(2)]
        found = {key: value.clone().contiguous() for key, value in trainer.state_dict().items()}
        save_file(
            found | {"error": torch.tensor(figures[-1]["error"])},
            Path(out) / f"{name}_{rank}.safetensors",
        )
    parallel.leave()


@pytest.mark.slow
def test_trainers_learn_the_same_from_other_experience(motions: MotionSet, tmp_path: Path) -> None:
    """Weights, moments of optimizers and values, duals and targets are equal to the bit; what was
    seen is not."""
    multiprocessing.spawn(_iterations, (str(tmp_path / "store"), str(tmp_path), motions), nprocs=2)
    own = ("env.", "replay.", "carried.", "generator", "range", "z.", "memory")  # a learner's own
    paths = sorted(tmp_path.glob("*_0.safetensors"))
    assert {"mo_vmpo_0", "world_model_0"} <= {path.stem for path in paths}
    for path in paths:
        first, second = load_file(path), load_file(path.with_name(path.name.replace("_0", "_1")))
        assert not torch.equal(first.pop("error"), second.pop("error"))
        learned = [name for name in first if not name.startswith(own)]
        assert len(learned) > 40, path.name
        assert [name for name in learned if not torch.equal(first[name], second[name])] == [], (
            path.name
        )
