"""Falls are recognized from what is sensed; which policy acts when, with what memory; and the
scenario of the suite."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.features import proprioception
from npmp.envs.policy import Observation, PolicyOutput, observe
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState
from npmp.evaluation import handover
from npmp.evaluation.handover import Handover, Recovery, check_compatible, get_up, load_recovery
from npmp.evaluation.suite import Scenario, SuccessConfig, run_scenario, setup_scenario
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy, module_sha256
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.inputs import Clock
from npmp.tasks.recover import Recover, RecoverConfig
from npmp.tasks.walk import WalkConfig
from npmp.tasks.walk_on import WalkOn
from tests.refusals import refusal

RANGE = ((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5))
WIRED = RobotBatchConfig(accelerometer="root")


class Still:
    """Walks nowhere: holds the home pose, and counts its steps."""

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n)

    def step(self, observation: Observation, state: Tensor) -> tuple[PolicyOutput, Tensor]:
        return PolicyOutput(torch.zeros(len(state), 12)), state + 1.0


class Recorded(Still):
    """Also keeps the task's inputs."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def step(self, observation: Observation, state: Tensor) -> tuple[PolicyOutput, Tensor]:
        self.inputs.append(observation.task)
        return super().step(observation, state)


@pytest.fixture
def recovery(robot: Robot, skill: SkillModule) -> Recovery:
    torch.manual_seed(0)
    task, plain = Recover(robot, RecoverConfig(drops=8)), skill.in_joint_space()
    net = HighLevelConfig(input_width=8, hidden_width=8, lstm_width=8)
    policy = HighLevelPolicy.for_task(plain, task, net=net, module=module_sha256(plain))
    return Recovery(over(policy, plain), task.config)


@pytest.fixture
def env(robot: Robot, recovery: Recovery) -> TaskEnv[WalkOn]:
    task = WalkOn(robot, changed(WalkConfig(), command_range=RANGE), recovery.task)
    return TaskEnv(task, 6, robots=WIRED, num_threads=1)


def test_lean_and_reach_are_told_from_what_is_sensed(
    robot: Robot, recovery: Recovery, env: TaskEnv[WalkOn]
) -> None:
    actor = Handover(Still(), recovery.policy, env)
    home = actor.home.expand(3, -1).clone()
    home[2, 1] += 0.3
    angles = torch.tensor([0.0, math.radians(90.0), 0.0])
    turn = torch.eye(3).repeat(3, 1, 1)
    turn[:, 1, 1] = turn[:, 2, 2] = torch.cos(angles)
    turn[:, 2, 1], turn[:, 1, 2] = torch.sin(angles), -torch.sin(angles)
    state = RobotState.still(torch.zeros(3, 3), turn, home)
    lean, reach, away = actor.posture(proprioception(state, actor.home))
    assert lean.tolist() == pytest.approx([0.0, 90.0, 0.0], abs=0.1)
    assert reach[0].item() == pytest.approx(float(robot.home_qpos[2]), abs=1e-3)
    assert reach[1].item() < 0.4 and away.tolist() == pytest.approx([0.0, 0.0, 0.3], abs=1e-5)


def test_it_hands_over_after_a_fall_and_back_once_the_robot_stands(
    robot: Robot, recovery: Recovery, env: TaskEnv[WalkOn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "FALLEN_S", 0.05)
    monkeypatch.setattr(handover, "STEADY_S", 0.1)
    actor = Handover(Still(), recovery.policy, env)
    n, ids = env.num_envs, torch.arange(env.num_envs)
    none, all_first = torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    fallen = env.task.parts.starts.drops
    lying = (
        torch.nonzero(RobotState.unpack(fallen[2]).root_rot[:, 2, 2] < 0.3)
        .squeeze(-1)[:1]
        .expand(n)
    )
    place = StartPoses(robot)
    down = tuple(part[lying] for part in fallen)

    def put(standing: bool) -> None:
        start = place.sample(n, env.generator) if standing else None
        if start is None:
            start = place.sample(n, env.generator)._replace(
                qpos=down[0], qvel=down[1], state=RobotState.unpack(down[2])
            )
        env.robots.place(ids, start, env.generator)

    put(standing=False)
    told, memory = actor.step(observe(env, all_first), actor.initial_state(n))
    assert told.info.all() and told.action.abs().sum() > 0.0  # at an episode's start at once
    assert not memory.walking.any() and memory.recovery.lower.upper.hidden.abs().sum() > 0.0
    put(standing=True)
    acting = []
    for _ in range(8):
        told, memory = actor.step(observe(env, none), memory)
        acting.append(bool(told.info[0]))
    assert acting == [True] * 5 + [False] * 3  # more than 0.1 s at 50 Hz
    assert not memory.recovery.lower.upper.hidden.any() and memory.walking.tolist() == [3.0] * n
    put(standing=False)
    acting = []
    for _ in range(4):
        told, memory = actor.step(observe(env, none), memory)
        acting.append(bool(told.info[0]))
    assert acting == [False, False, True, True] and not memory.walking.any()


def test_it_observes_once(robot: Robot, recovery: Recovery) -> None:
    """Readings of the ground are not sampled again; a clock starts where the robot walks again."""
    settings = changed(WalkConfig(), command_range=RANGE, clock_s=0.5, sees_ground=True)
    env = TaskEnv(WalkOn(robot, settings, recovery.task), 2, robots=WIRED, num_threads=1)
    env.task.part(Clock).phase[:] = 0.25  # type: ignore[union-attr]
    walking = Recorded()
    actor = Handover(walking, recovery.policy, env)
    lasted = torch.tensor([0.0, 1.0])
    state = actor.initial_state(2)._replace(recovering=torch.tensor([True, True]), lasted_s=lasted)
    home = actor.home.new_zeros(2), actor.home.new_full((2,), actor.standing)
    actor.posture = lambda proprioception: (home[0], home[1], home[0])  # type: ignore[method-assign]
    observation = observe(env, torch.zeros(2, dtype=torch.bool))
    noise = env.generator.get_state()
    actor.step(observation, state)
    assert torch.equal(env.generator.get_state(), noise)
    [inputs] = walking.inputs
    commands, clock, ground = inputs.split((3, 2, inputs.shape[-1] - 5), -1)
    before = observation.task
    assert torch.equal(commands, before[:, :3]) and torch.equal(ground, before[:, 5:])
    # sine and cosine of the phase, a quarter and 0
    assert clock.tolist() == [pytest.approx([1.0, 0.0], abs=1e-6), [0.0, 1.0]]


def test_who_is_down_and_who_stands(
    recovery: Recovery, env: TaskEnv[WalkOn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By lean [deg], reach as a share of standing, and how far the joints are from home [rad]."""
    monkeypatch.setattr(handover, "FALLEN_S", 0.0)
    monkeypatch.setattr(handover, "STEADY_S", 0.0)
    actor = Handover(Still(), recovery.policy, env)
    walks = [(54.0, 0.51, 9.0), (56.0, 0.51, 9.0), (54.0, 0.49, 9.0)]
    gets_up = [(14.0, 0.86, 0.34), (16.0, 0.86, 0.34), (14.0, 0.84, 0.34), (14.0, 0.86, 0.36)]
    lean, reach, away = torch.tensor(walks + gets_up).unbind(-1)
    monkeypatch.setattr(actor, "posture", lambda seen: (lean, reach * actor.standing, away))
    anew: list[Any] = []
    task = SimpleNamespace(
        reset_memory=lambda mask: anew.append(mask.tolist()),
        observe=lambda: torch.zeros(7, 0),
        observed_again=lambda inputs: inputs,
    )
    actor.env = SimpleNamespace(  # type: ignore[assignment]
        observe=lambda: torch.zeros(7, 33), dt=0.02, num_envs=7, task=task, state=None
    )
    state = actor.initial_state(7)._replace(recovering=torch.arange(7) >= 3)
    told, _ = actor.step(observe(actor.env, torch.zeros(7, dtype=torch.bool)), state)
    assert told.info.tolist() == [False, True, True, False, True, True, True]
    assert anew == [[False, False, False, True, False, False, False]]  # the one that walks again


def test_the_suite_starts_fallen_where_there_is_who_gets_up(
    robot: Robot, recovery: Recovery
) -> None:
    scenario = Scenario((0.5, 0.0, 0.0), seconds=0.2, fallen=True)
    made = setup_scenario(
        "fallen_start", scenario, changed(WalkConfig(), command_range=RANGE), WIRED, RANGE
    )
    how: dict[str, Any] = {"trials": 4, "num_threads": 1}
    outcome = run_scenario(
        Still(), robot, made, SuccessConfig(last_s=0.1), recovery=recovery, **how
    )
    assert outcome.row["fell"] == 0.0 and 0.0 <= outcome.row["risen"] <= 1.0 and not scenario.plain
    refusal("recovery=NAME", run_scenario, Still(), robot, made, SuccessConfig(), **how)


def test_a_recovery_is_read_with_its_task(robot: Robot, recovery: Recovery, tmp_path: Path) -> None:
    recovery.policy.lower.save(tmp_path / "out" / "module")
    settings = {"settings": {"joint_range_rad": {"HFE": 3.0}, "drops": 7}}
    recovery.policy.upper.save(tmp_path / "out" / "policy", training=settings)
    result = load_recovery(tmp_path / "out" / "policy", robot)
    assert result.task.drops == 7 and dict(result.task.joint_range_rad) == {"HFE": 3.0}


def test_who_is_wired_otherwise_or_does_something_else_is_refused(
    robot: Robot, recovery: Recovery, skill: SkillModule, policy: HighLevelPolicy, tmp_path: Path
) -> None:
    policy.save(tmp_path / "alone")  # without a module
    refusal("trained for task 'walk'", load_recovery, tmp_path / "alone", robot)
    refusal("trained for task 'walk'", get_up, over(policy, skill))
    other = SkillModule(replace(skill.contract, training={"hold": "first_order"}))
    message = "it is first_order for the walking policy, zero_order for the rec"
    refusal(message, check_compatible, over(policy, other), recovery.policy)


def test_the_shipped_policy_gets_up(robot: Robot) -> None:
    shipped = load_recovery("anymal_b_recover", robot)
    wired = RobotBatchConfig().like(shipped.policy.lower)
    env = TaskEnv(Recover(robot, replace(shipped.task, drops=24)), 24, robots=wired, num_threads=1)
    figures = env.task.figures(run_trial(shipped.policy, env, seconds=3.5))
    assert figures["recovered"] >= 0.85  # 98 % of 511
