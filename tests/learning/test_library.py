"""Training without a command: generators, and threads of the caller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import SkillModule, tasks
from npmp.core.artifact import read_tensors, sha256
from npmp.learning.imitation import (
    ImitationModelBasedConfig,
    ImitationSettings,
    ImitationVMPOConfig,
    train_module,
)
from npmp.learning.reuse import (
    ReuseConfig,
    ReuseSettings,
    ReuseStudentConfig,
    ReuseVMPOConfig,
    train_policy,
)
from npmp.learning.run import Caller
from npmp.learning.world_model import model_fit
from npmp.robots import Robot
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.tasks import Walk
from tests.refusals import refusal

TINY = ImitationSettings(
    algo=ImitationModelBasedConfig(
        model_hidden=(16,),
        model_batch=16,
        policy_batch=8,
        horizon=(2, 2),
        model_updates=1,
        policy_updates=1,
        warmup_updates=2,
    ),
    num_envs=8,
    net=NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=16),
    steps=8 * (16 + 4),
    evaluation_starts=2,
    logger="none",
)


def test_a_module_is_trained_on(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    first = train_module(motions, robot, tmp_path / "first", TINY, seed=3)
    more = train_module(
        motions, robot, tmp_path / "more", TINY, seed=4, module=tmp_path / "first" / "module"
    )
    scales = [
        read_tensors(tmp_path / run / "module" / model_fit.FILE)["inputs.mean"]
        for run in ("first", "more")
    ]
    assert torch.equal(*scales)  # it went on with the model of the first, too
    train_module(motions, robot, tmp_path / "new", TINY, seed=4)
    assert more["before"]["tracked_s"] > 0.0 and first["after"]["tracked_s"] > 0.0
    one, on, new = (
        SkillModule.load(tmp_path / name / "module") for name in ("first", "more", "new")
    )
    trained, began = (module.encoder.head.weight - one.encoder.head.weight for module in (on, new))
    assert 0.0 < trained.abs().max() < 0.2 * began.abs().max()
    other = replace(TINY, net=replace(TINY.net, latent_dim=5))
    message = r"the module's net is .*latent_dim=4.* this run's .*latent_dim=5"
    with pytest.raises(InputError, match=message):
        train_module(
            motions, robot, tmp_path / "other", other, module=tmp_path / "first" / "module"
        )
    published = replace(TINY, algo=ImitationVMPOConfig())
    with pytest.raises(InputError, match="algo=mo_vmpo"):
        train_module(
            motions, robot, tmp_path / "other", published, module=tmp_path / "first" / "module"
        )


def test_a_run_depends_on_its_seed_alone_and_goes_on(
    motions: MotionSet, robot: Robot, tmp_path: Path
) -> None:
    summaries, began = [], []
    for name, draws in (("one", 0), ("other", 7)):
        torch.rand(draws)
        caller = Caller(on_start=lambda: began.append(True))
        summaries.append(train_module(motions, robot, tmp_path / name, TINY, seed=3, caller=caller))
    assert summaries[0]["after"] == summaries[1]["after"] and len(began) == 2
    one, other = (
        SkillModule.load(tmp_path / name / "module").state_dict() for name in ("one", "other")
    )
    assert all(torch.equal(one[key], other[key]) for key in one)
    again = train_module(motions, robot, tmp_path / "one", TINY, seed=3, resume=tmp_path / "one")
    assert again["iterations"] == summaries[0]["iterations"] == 2


def test_a_policy_is_trained_by_a_call(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    train_module(motions, robot, tmp_path / "imitated", TINY)
    algo = ReuseVMPOConfig(unroll=16)
    settings = ReuseSettings(
        algo=algo, num_envs=4, steps=128, evaluation_robots=2, evaluation_seconds=0.2, logger="none"
    )
    module = tmp_path / "imitated" / "module"
    one, other = (
        train_policy(module, Walk, tmp_path / name, settings, seed=1) for name in ("one", "other")
    )
    assert one["velocity_error"] == other["velocity_error"] and one["iterations"] == 2
    assert (tmp_path / "one" / "policy" / "policy.json").is_file()
    message = "no reuse task 'path'"
    refusal(message, train_policy, module, tasks.Path, tmp_path / "other", settings)

    def taught(name: str, teacher: str, algo: ReuseConfig, **more: Any) -> dict[str, Any]:
        asks = replace(
            settings, algo=algo, net=HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)
        )
        shows = tmp_path / teacher / "policy"
        return train_policy(module, Walk, tmp_path / name, asks, teacher=shows, seed=1, **more)

    clone = ReuseStudentConfig(unroll=16, kept=1, updates=2, batch=4)
    small = taught("small", "one", clone)
    assert small["teacher"] == "policy"
    assert small["teacher_sha256"] == sha256(tmp_path / "one/policy/policy.safetensors")
    assert (
        HighLevelPolicy.load(tmp_path / "small/policy", module=module).contract.net["lstm_width"]
        == 16
    )
    assert (
        taught("small", "one", clone, resume=tmp_path / "small")["iterations"]
        == small["iterations"]
        == 2
    )
    message = "another module, teacher, walker= or joint_space="
    refusal(message, taught, "small", "small", clone, resume=tmp_path / "small")
    refusal("teacher= needs algo=clone", taught, "other", "one", algo)
