"""Learning through a model of the robots that a policy moves: what is stored, what changes, and to
the bit."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import geometry
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.features import context_size
from npmp.envs.state import RobotState
from npmp.nets.high_level import HighLevelState
from npmp.reuse import HighLevelPolicy, ModelTrainer, ModelTrainerConfig
from npmp.reuse.imagination import Carry, PolicyImagination
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skill import SkillModule
from npmp.tasks import Dribble, DribbleConfig, Imitation, ImitationConfig
from npmp.tasks.walk import WalkConfig
from npmp.world_model.replay import Start
from tests.environments import imitation_env, walk_env

TINY = ModelTrainerConfig(
    model_hidden=(32,), model_batch=32, model_updates=1, window=4, collect_steps=4, replay_steps=24, warmup_steps=12,
    warmup_updates=3, policy_updates=2, policy_batch=16, horizon=4, clone_steps=40, clone_updates=2, clone_batch=8,
    clone_sequence=8,
)  # fmt: skip


def trainer(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    *,
    seed: int = 0,
    config: ModelTrainerConfig = TINY,
    motions: MotionSet | None = None,
    new: bool = True,
) -> ModelTrainer:
    robots = RobotBatchConfig(pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.1))
    env = walk_env(robot, 6, seed=seed, config=walking, robots=robots)
    recordings = (
        None if motions is None else Imitation(robot, ImitationConfig(uniform_starts=1.0), motions)
    )
    return ModelTrainer(
        env, skill, copy.deepcopy(policy), config, recordings=recordings, new=new, seed=seed
    )


def test_what_is_stored_is_what_happened(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    run.warm_up()
    kept, first = run.replay.floats, run.replay.first[: run.replay.filled]
    assert run.replay.filled == 12 and bool(first[0].all()) and bool(first[1:].any())
    # an episode begins with empty memories
    for name in ("z", "hidden", "cell", "policy_hidden", "policy_cell"):
        values = kept[name][:12]
        assert not bool(values[first].any()) and bool(values[~first].abs().sum(-1).all())
    assert run.env_steps == (40 + 12) * 6 == run.steps_before
    low, high = walking.range[0]
    forward = kept["goal"][:12, :, 0]
    assert bool(((forward >= low) & (forward <= high)).all())


def test_policy_and_model_change_and_the_decoder_does_not(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    before = {name: value.clone() for name, value in skill.state_dict().items()}
    run.warm_up()
    cloned, model = copy.deepcopy(run.average), copy.deepcopy(run.model)
    metrics = [run.iteration(k / 3) for k in range(3)]
    for name, value in before.items():
        assert torch.equal(run.skill.state_dict()[name], value) and torch.equal(
            skill.state_dict()[name], value
        )
    for now, then in ((run.average, cloned), (run.online, run.average), (run.model, model)):
        assert any(
            not torch.equal(a, b) for a, b in zip(now.parameters(), then.parameters(), strict=True)
        )
    assert run.env_steps == run.steps_before + 3 * 4 * 6 and run.iteration_count == 3
    named = (
        "reward",
        "velocity_error",
        "falls_per_s",
        "model_loss",
        "kl",
        "imagined_task",
        "imagined_posture",
    )
    assert all(name in metrics[0] for name in named)
    assert [list(m) for m in metrics] == [list(metrics[0])] * 3  # the same columns every time


def test_updates_lower_the_imagined_loss(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    alone = {"beta": 0.0, "posture": 0.0, "effort": 0.0, "smoothness": 0.0}
    config = ModelTrainerConfig(**{**vars(TINY), "policy_batch": 64, **alone})
    plain = replace(
        walking,
        drag_weight=0.0,
        press_weight=0.0,
        lift_weight=0.0,
        acceleration=(100.0, 100.0, 100.0),
    )
    run = trainer(robot, plain, skill, policy, config=config)
    run.warm_up()
    lost = [run.improve_policy()["imagined_task"] for _ in range(60)]
    assert sum(lost[-10:]) < 0.97 * sum(lost[:10])


def noted(imagination: PolicyImagination) -> list[torch.Tensor]:
    """The physics that imagination is told from now on."""
    given: list[torch.Tensor] = []
    real = imagination.begin

    def begin(start: Start, policy: HighLevelState, goal: torch.Tensor) -> Carry:
        given.append(start.physics)
        return real(start, policy, goal)

    imagination.begin = begin  # type: ignore[method-assign]
    return given


def test_a_push_is_known_to_the_model_and_imagined_where_it_is_to_be(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    for pushed in (False, True):
        chosen = ModelTrainerConfig(**{**vars(TINY), "imagine_pushes": pushed})
        run = trainer(robot, walking, skill, policy, config=chosen)
        run.warm_up()
        assert bool(run.replay.floats["physics"].any())
        given = noted(run.imagination)
        run.improve_policy()
        assert bool(given[0].any()) == pushed


def test_dribbling_is_learned_through_the_model(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """The same numbers with the same seed, from a checkpoint, too; the script stays what it was."""

    def fresh(seed: int) -> ModelTrainer:
        env = TaskEnv(
            Dribble(robot, DribbleConfig(episode_s=0.3, jump_period_s=0.1)),
            6,
            seed=seed,
            num_threads=1,
        )
        return ModelTrainer(env, skill, policy.for_other_task(env.task), TINY, new=False, seed=seed)

    whole = fresh(0)
    begun = whole.policy.contract
    figures = whole.warm_up()
    assert "clone_loss" not in figures
    expected = [whole.iteration(k / 4) for k in range(4)]
    assert all(
        math.isfinite(metrics["imagined_task"]) and metrics["skipped_updates"] == 0
        for metrics in expected
    )
    first, second = fresh(0), fresh(5)
    first.warm_up()
    assert [first.iteration(k / 4) for k in range(2)] == expected[:2]
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    assert [second.iteration(k / 4) for k in range(2, 4)] == expected[2:]
    assert (
        whole.policy.contract == begun and begun.commander["reach"] == DribbleConfig().teacher.reach
    )


def test_the_same_seed_gives_the_same_numbers_and_a_resumed_run_equals_an_uninterrupted_one(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    whole = trainer(robot, walking, skill, policy)
    whole.warm_up()
    expected = [whole.iteration(k / 5) for k in range(5)]
    first = trainer(robot, walking, skill, policy)
    first.warm_up()
    assert [first.iteration(k / 5) for k in range(3)] == expected[:3]
    kept = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = trainer(robot, walking, skill, policy, seed=8)
    second.load_state_dict(kept)
    assert [second.iteration(k / 5) for k in range(3, 5)] == expected[3:]
    one, other = whole.state_dict(), second.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_recordings_are_cloned_and_give_the_postures(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    motions: MotionSet,
) -> None:
    with pytest.raises(InputError, match="context_size"):  # this one's encoder knows no recordings
        trainer(robot, walking, skill, policy, motions=motions)
    torch.manual_seed(0)
    contract = replace(skill.contract, context_size=context_size(robot, 5))
    skill = SkillModule(contract).requires_grad_(False)
    run = trainer(robot, walking, skill, policy, motions=motions)
    assert run.recordings is not None
    low = torch.quantile(run.recordings.reference.frames.joint_pos[:, 0], 0.01)
    assert run.postures.low[4] == low
    run.warm_up()
    assert run.postures.low[4] == low
    # one that has learned before
    later = trainer(robot, walking, skill, policy, motions=motions, new=False)
    assert later.steps_before == 12 * 6
    later.warm_up()
    assert later.env_steps == 12 * 6
    assert all(
        torch.equal(a, b)
        for a, b in zip(later.average.parameters(), policy.parameters(), strict=True)
    )


def test_what_does_not_fit_is_refused(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    motions: MotionSet,
) -> None:
    with pytest.raises(
        InputError, match="task 'imitation' cannot be learned through a model; use algo=vmpo"
    ):
        env: TaskEnv[Imitation] = imitation_env(robot, motions, 2)
        ModelTrainer(env, skill, policy, TINY)
    with pytest.raises(
        InputError, match=r"algo\.clone_steps=20: sequences and what follows them take 33"
    ):
        trainer(
            robot,
            walking,
            skill,
            policy,
            config=ModelTrainerConfig(**{**vars(TINY), "clone_steps": 20}),
        )
    for key in ("clone_steps", "clone_batch"):
        with pytest.raises(InputError, match=rf"algo\.{key}=1000000000: .* GiB"):
            trainer(
                robot,
                walking,
                skill,
                policy,
                config=ModelTrainerConfig(**{**vars(TINY), key: 10**9}),
            )
    run = trainer(robot, walking, skill, policy)
    with pytest.raises(InputError, match="another kind of run"):
        run.load_state_dict({**run.state_dict(), "carried.memory.skill.z": torch.zeros(2, 4)})
    with pytest.raises(ValueError, match="warmup_steps"):
        ModelTrainerConfig(warmup_steps=8)


def test_on_rough_ground_heights_are_above_it_and_integrals_of_velocities(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    rough = replace(walking, terrain="perlin", terrain_level=1.0, terrain_fields=4)
    run = trainer(robot, rough, skill, policy)
    run.warm_up()
    assert bool(torch.isfinite(torch.tensor(list(run.iteration(0.0).values()))).all())
    window = run.replay.windows(64, 4, torch.Generator().manual_seed(0))
    states, valid = RobotState.unpack(window.states), window.valid
    moved = states.root_pos[1:] - states.root_pos[:-1]
    went = geometry.to_world(states.root_rot[1:], states.root_vel[1:]) * run.env.dt
    torch.testing.assert_close(
        moved * valid.unsqueeze(-1), went * valid.unsqueeze(-1), atol=1e-4, rtol=0
    )
    # standing or stumbling, and not at the world's heights of fields that go up and down by some
    # 0.3 m imagined heights are above the ground
    assert abs(run.postures.high[0].item() - float(robot.home_qpos[2])) < 0.15
    heights = states.root_pos[0, :, 2]
    world = run.replay.floats["state"][: run.replay.filled, :, 2]
    assert heights.std() < world.std() and abs(heights.mean() - float(robot.home_qpos[2])) < 0.15


def test_costs_come_in_by_hwangbos_curriculum(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """The same moments are imagined whatever costs weigh, and the first step of learning differs:
    gradients do."""
    norms = {}
    for share in (1.0, 0.3):
        chosen = replace(TINY, effort=5.0, smoothness=5.0, cost_curriculum=(share, 0.5))
        run = trainer(robot, walking, skill, policy, config=chosen)
        run.warm_up()
        figures = run.improve_policy()
        norms[share] = figures["policy_grad_norm"]
        assert figures["cost_share"] == pytest.approx(share)
        run.iteration_count = 2
        assert run.cost_share == pytest.approx(share**0.25)  # k <- k ** 0.5, twice
    assert norms[0.3] < norms[1.0]
    with pytest.raises(ValueError, match="cost_curriculum must be 0 < k_0 <= 1"):
        replace(TINY, cost_curriculum=(0.0, 0.5))
