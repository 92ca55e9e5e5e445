"""The policy's folder: what is written is what is read, and another module is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mocap_data.errors import InputError
from npmp import tasks
from npmp.core.tree import map_tree
from npmp.envs.policy import Observation
from npmp.robots import Robot
from npmp.skills import policies
from npmp.skills.high_level_policy import HighLevelPolicy, find_module, module_sha256
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import Walk, WalkConfig
from tests.refusals import refusal


def some_input(policy: HighLevelPolicy, *leading: int) -> Observation:
    return Observation(
        torch.randn(*leading, sum(width for _, width in policy.contract.observation)),
        torch.randn(*leading, 3),
        z_before=torch.randn(*leading, policy.latent_dim),
    )


def test_round_trip(policy: HighLevelPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy", training={"seed": 3})
    read = HighLevelPolicy.load(tmp_path / "policy")
    given = some_input(policy, 6)
    expected, _ = policy.step(given, policy.initial_state(6))
    result, _ = read.step(given, read.initial_state(6))
    assert torch.equal(expected.mean, result.mean) and torch.equal(expected.std, result.std)
    assert read.contract.training == {"seed": 3} and read.contract.versions["torch"]
    assert read.contract.command_range == policy.contract.command_range
    wanted = ["policy.json", "policy.safetensors"]
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == wanted


def test_older_names_are_read(robot: Robot, skill: SkillModule, tmp_path: Path) -> None:
    """`extra_inputs` was `besides`."""
    HighLevelPolicy.for_task(skill, Walk(robot, WalkConfig(clock_s=0.5))).save(tmp_path)
    description = tmp_path / "policy.json"
    content = json.loads(description.read_text())
    content["besides"] = content.pop("extra_inputs")
    description.write_text(json.dumps(content))
    assert HighLevelPolicy.load(tmp_path).contract.extra_inputs == ["clock_sin", "clock_cos"]


def test_the_prior_is_the_modules_or_another(
    robot: Robot, skill: SkillModule, walking: WalkConfig
) -> None:
    for asked, alpha in ((None, 0.95), (0.0, 0.0), (0.5, 0.5)):
        made = HighLevelPolicy.for_task(
            skill, Walk(robot, walking), net=HighLevelConfig(alpha=asked)
        )
        assert made.contract.alpha == alpha


def test_an_unroll_equals_steps_across_resets(policy: HighLevelPolicy) -> None:
    steps, n = 7, 3
    given = some_input(policy, steps, n)
    resets = torch.zeros(steps, n, dtype=torch.bool)
    resets[0, 0] = resets[3, 1] = resets[5, 2] = True
    start = policy.initial_state(n)._replace(hidden=torch.randn(n, 8), cell=torch.randn(n, 8))
    mean, std, last, _ = policy(given, start, resets)
    state = start
    for t in range(steps):
        latent, state = policy.step(
            map_tree(lambda part, t=t: part[t], given), state.reset(resets[t])
        )
        torch.testing.assert_close(mean[t], latent.mean)
        torch.testing.assert_close(std[t], latent.std)
    torch.testing.assert_close(last.hidden, state.hidden)


def test_belongs_to_one_module(policy: HighLevelPolicy, skill: SkillModule, tmp_path: Path) -> None:
    skill.save(tmp_path / "module")
    own = HighLevelPolicy(
        type(policy.contract)(
            **{**policy.contract.__dict__, "module_sha256": module_sha256(tmp_path / "module")}
        )
    )
    own.save(tmp_path / "policy")
    HighLevelPolicy.load(tmp_path / "policy", module=tmp_path / "module")
    policy.save(tmp_path / "stranger")
    assert module_sha256(skill) == own.contract.module_sha256
    with pytest.raises(InputError, match="another skill module"):
        HighLevelPolicy.load(tmp_path / "stranger", module=tmp_path / "module")
    refusal(r"module\.safetensors' is missing", module_sha256, tmp_path / "nowhere")


@pytest.mark.parametrize("name", policies.names())
def test_what_is_shipped_can_be_used(name: str) -> None:
    folder = policies.find(name)
    digest = json.loads((folder / "policy.json").read_text())["module_sha256"]
    shipped = HighLevelPolicy.load(folder, module=find_module(folder, digest))
    shipped.check_task(tasks.find(shipped.contract.task))
    assert (folder / "README.md").is_file()
