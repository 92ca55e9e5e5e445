"""A walking policy that dribbles: the script's command in front of it, then ball and target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.policy import Observation, observe
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills import policies
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, DribbleConfig, Walk
from npmp.tasks.teachers.dribbling import DribbleScript, DribbleScriptConfig, dribble_command
from npmp.tasks.walk import WalkConfig
from tests.refusals import refusal

CONFIG = DribbleScriptConfig()
SCRIPT = DribbleScript(CONFIG)


def test_a_commanded_walker_is_one_policy(
    robot: Robot, policy: HighLevelPolicy, tmp_path: Path
) -> None:
    """At first it does what the walking policy does on the script's command, from its file, too."""
    task = Dribble(robot)
    whole = policy.below(SCRIPT, task)
    assert whole.contract.task == "dribble" and whole.contract.command == list(task.inputs)
    asked = 2.0 * torch.randn(7, 64, 4, generator=torch.Generator().manual_seed(1))
    seen, z, first = (
        torch.randn(7, 64, 33),
        torch.randn(7, 64, 4),
        torch.zeros(7, 64, dtype=torch.bool),
    )
    command = dribble_command(asked[..., :2], asked[..., 2:], CONFIG)
    ours = whole(Observation(seen, asked, z_before=z), whole.initial_state(64), first)
    theirs = policy(Observation(seen, command, z_before=z), policy.initial_state(64), first)
    # other widths of the first layer, other orders of its sums
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-4)
    whole.save(tmp_path / "policy")
    again = HighLevelPolicy.load(tmp_path / "policy")
    assert again.script is not None and again.script.config == CONFIG
    assert torch.equal(
        again(Observation(seen, asked, z_before=z), again.initial_state(64), first)[0], ours[0]
    )


def test_it_can_learn_what_the_script_does_not_say(robot: Robot, policy: HighLevelPolicy) -> None:
    """Balls at their targets are all left alone by the script, wherever they are; the policy can
    tell them apart."""
    whole = policy.below(SCRIPT, Dribble(robot))
    told = torch.tensor([[0.5, 0.2, 0.5, 0.2], [0.9, -0.4, 0.9, -0.4]])
    near, far = whole.inputs(Observation(torch.zeros(2, 33), told))
    assert torch.equal(near[:36], far[:36]) and not torch.equal(near[36:], far[36:])
    assert len(near) == 33 + 3 + 4


def test_it_moves_robots(robot: Robot, skill: SkillModule, policy: HighLevelPolicy) -> None:
    env = TaskEnv(Dribble(robot), 2, num_threads=1)
    whole = policy.below(SCRIPT, env.task)
    trial = run_trial(over(whole, skill), env, seconds=0.1)
    assert trial.error.shape == (5, 2) and trial.metrics["ball"].shape == (5, 2, 2)


def test_a_script_over_a_walking_policy_is_a_composition(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """Three levels act as the one policy that is learned on from them, at first."""
    env = TaskEnv(Dribble(robot), 3, num_threads=1)
    levels = over(SCRIPT, over(policy, skill))
    whole = over(policy.below(SCRIPT, env.task), skill)
    one, other = levels.initial_state(3), whole.initial_state(3)
    for _ in range(3):
        observation = observe(env, env.age == 0)
        output, one = levels.step(observation, one)
        expected, other = whole.step(observation, other)
        torch.testing.assert_close(output.action, expected.action, atol=1e-5, rtol=1e-4)
        env.step(output.action)


def test_a_blind_walker_observes_the_ground_from_zero_weights_on(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """Whatever the heights are, it does what the blind one does; its weights can then change."""
    sees = Walk(robot, changed(WalkConfig(), sees_ground=True, clock_s=0.5))
    wide = policy.with_sensors_of(sees)
    assert wide.contract.sees_ground
    assert wide.contract.clock_s == 0.5
    sensors = len(sees.extra_inputs)
    reading = Observation(
        torch.randn(7, 64, 33), torch.randn(7, 64, 3 + sensors), z_before=torch.randn(7, 64, 4)
    )
    first = torch.zeros(7, 64, dtype=torch.bool)
    blind = reading._replace(task=reading.task[..., :3])
    expected = policy(blind, policy.initial_state(64), first)
    output = wide(reading, wide.initial_state(64), first)
    for value, other in zip(output[:2], expected[:2], strict=True):
        torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-4)
    output[0].sum().backward()
    layer = dict(wide.named_parameters())["net.norm.0.weight"].grad
    assert layer is not None
    assert bool((layer[:, 36 : 36 + sensors].abs().amax(0) > 0.0).all())
    # with the task's sensors it is continued as it is
    assert wide.with_sensors_of(sees).contract.extra_inputs == wide.contract.extra_inputs


def test_only_a_walking_policy_is_commanded(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    dribbles = HighLevelPolicy.for_task(skill, Dribble(robot))
    refusal("this policy of task 'dribble'", dribbles.below, SCRIPT, Dribble(robot))
    refusal("'walk' has forward_mps", dribbles.for_other_task, Walk(robot))


def test_learning_to_dribble_begins_with_a_walker(robot: Robot, policy: HighLevelPolicy) -> None:
    whole = policy.for_other_task(Dribble(robot))
    assert whole.contract.task == "dribble" and whole.script.config == CONFIG  # type: ignore[union-attr]
    faster = DribbleConfig(teacher=DribbleScriptConfig(near=0.9))
    again = whole.for_other_task(Dribble(robot, faster))
    assert again.script.config == faster.teacher  # type: ignore[union-attr]
    assert again.contract.script["near"] == 0.9 and again.contract.command == whole.contract.command


def test_a_walker_with_its_module_is_a_module_of_commands(
    robot: Robot,
    skill: SkillModule,
    policy: HighLevelPolicy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its file it does what the policy does through its module at each command, memories and
    all; a latent beyond 1 is the highest command."""
    monkeypatch.setitem(skill.contract.training, "licences", ["mine"])
    over(policy, skill).as_module().save(tmp_path)
    module = SkillModule.load(tmp_path)
    assert module.contract.training["licences"] == ["mine"]
    assert (module.latent_dim, module.prior.alpha, module.hold) == (3, 0.0, skill.hold)
    module.check_robot(robot)
    low, high = torch.tensor(policy.contract.command_range).T
    generator = torch.Generator().manual_seed(2)
    told, mine = policy.initial_state(8), module.initial_state(8)
    below, z_before = skill.initial_state(8), torch.zeros(8, 4)
    for _ in range(6):
        seen = torch.randn(8, 33, generator=generator)
        z = 4.0 * torch.rand(8, 3, generator=generator) - 2.0
        command = 0.5 * (low + high) + 0.5 * (high - low) * z.clamp(-1.0, 1.0)
        latent, told = policy.step(Observation(seen, command, z_before=z_before), told)
        expected, below = skill.decode(latent.mean, seen, below)
        result, mine = module.decode(z, seen, mine)
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
        z_before = latent.mean
    refusal("commands", module.check_encoder, robot)
    dribbles = policy.below(SCRIPT, Dribble(robot))
    refusal("without a script", over(dribbles, skill).as_module)
    refusal("over skills", over(policy, skill.in_joint_space()).as_module)


def test_op3_dribbles_by_its_walkers_weights() -> None:
    """Shipped without training: for a ball and a target it does what the walker does at the
    script's command."""
    whole, walker = (HighLevelPolicy.load(policies.find(f"op3_{n}")) for n in ("dribble", "walk"))
    assert whole.script is not None
    assert whole.contract.module_sha256 == walker.contract.module_sha256
    ball, target = 0.5 * torch.randn(2, 16, 2, generator=torch.Generator().manual_seed(0))
    command = dribble_command(ball, target, whole.script.config)
    senses = torch.randn(16, sum(width for _, width in walker.contract.observation))
    z = torch.randn(16, walker.latent_dim)
    seen = Observation(senses, torch.cat((ball, target), -1), z_before=z)
    (ours, _), (theirs, _) = (
        policy.step(seen._replace(task=inputs), policy.initial_state(16))
        for policy, inputs in ((whole, seen.task), (walker, command))
    )
    torch.testing.assert_close(ours.mean, theirs.mean, atol=1e-5, rtol=1e-4)
    low, high = torch.tensor(walker.contract.command_range).T
    assert bool(((command >= low - 1e-6) & (command <= high + 1e-6)).all())
