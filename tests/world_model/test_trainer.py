"""The fast path's loop at toy size: what it collects, that it learns, that it repeats and resumes
itself to the bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import RobotState
from npmp.nets import NetConfig
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig
from npmp.world_model.fitting import ModelFit
from npmp.world_model.replay import Replay
from npmp.world_model.trainer import WorldModelConfig, WorldModelTrainer
from tests.environments import imitation_env

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
TINY = WorldModelConfig(
    collect_steps=4, replay_steps=24, warmup_steps=12, model_hidden=(16,), model_updates=1, model_batch=16, window=4,
    policy_updates=1, policy_batch=8, horizon=(3, 5), prior_share=0.3, prior_steps=4, rejoin_rate=5.0,
)  # fmt: skip


def make(
    robot: Robot, motions: MotionSet, seed: int = 0, n: int = 12, config: WorldModelConfig = TINY
) -> WorldModelTrainer:
    env = imitation_env(robot, motions, n, seed=seed)
    return WorldModelTrainer(env, NET, config, seed=seed)


def run(trainer: WorldModelTrainer, iterations: int, total: int = 8) -> list[dict[str, float]]:
    return [trainer.iteration(trainer.iteration_count / total) for _ in range(iterations)]


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in state.items()}


def test_the_same_seed_gives_the_same_numbers(robot: Robot, motions: MotionSet) -> None:
    logs = []
    for seed in (0, 0, 1):
        trainer = make(robot, motions, seed)
        trainer.warm_up()
        logs.append(run(trainer, 4))
    assert logs[0] == logs[1]  # floats compared exactly
    assert logs[0] != logs[2]


def test_the_model_is_fitted_before_who_has_learned_goes_on(
    robot: Robot, motions: MotionSet
) -> None:
    """An untrained model would spoil what a module can; a new module can nothing."""
    config = dataclasses.replace(TINY, warmup_updates=3)
    new = make(robot, motions, config=config)
    new.warm_up()
    on = WorldModelTrainer(imitation_env(robot, motions, 12), NET, config, skill=new.module())
    on.warm_up()
    counts = [
        {int(state["step"]) for state in run.fit.optimizer.state.values()} for run in (new, on)
    ]
    assert counts == [set(), {3}]
    for frozen, model in zip(on.fit.frozen.parameters(), on.model.parameters(), strict=True):
        assert torch.equal(frozen, model)


def test_imagination_may_begin_where_episodes_do(robot: Robot, motions: MotionSet) -> None:
    trainer = make(robot, motions, config=dataclasses.replace(TINY, fresh_starts=0.5))
    trainer.warm_up()
    start = trainer._starts()
    assert (
        not start.hidden[:4].any()
        and not start.z[:4].any()
        and bool((start.frame[:4] < start.last_frame[:4]).all())
    )
    assert start.hidden[4:].any()
    with pytest.raises(ValueError, match="fresh_starts needs burn_in=0"):
        dataclasses.replace(TINY, fresh_starts=0.5, burn_in=2)
    with pytest.raises(ValueError, match="fresh_starts"):
        dataclasses.replace(TINY, fresh_starts=1.5)


def test_a_resumed_run_equals_an_uninterrupted_one(robot: Robot, motions: MotionSet) -> None:
    whole = make(robot, motions)
    whole.warm_up()
    run(whole, 4)
    kept = copied(whole.state_dict())
    expected = run(whole, 4)
    # a fresh process, whose own random numbers must not matter
    resumed = make(robot, motions, seed=5)
    resumed.load_state_dict(kept)
    assert resumed.iteration_count == 4 and resumed.env_steps == 12 * (12 + 4 * 4)
    assert run(resumed, 4) == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize(
    "change",
    [
        {"overlap": True},
        {"optimizer": "muon"},
        {"burn_in": 3},
        {"prior_posture": 1.0, "prior_wasserstein": 1.0},
    ],
)
def test_every_variant_repeats_and_resumes_itself(
    robot: Robot, motions: MotionSet, change: dict[str, Any]
) -> None:
    config = dataclasses.replace(TINY, **change)
    whole, again = make(robot, motions, config=config), make(robot, motions, config=config)
    for trainer in (whole, again):
        trainer.warm_up()
    assert run(whole, 3) == run(again, 3)
    kept = copied(whole.state_dict())
    expected = run(whole, 3)
    resumed = make(robot, motions, seed=5, config=config)
    resumed.load_state_dict(kept)
    assert run(resumed, 3) == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_a_run_may_go_on_overlapped(robot: Robot, motions: MotionSet) -> None:
    plain = make(robot, motions)
    plain.warm_up()
    run(plain, 1)
    overlapped = make(robot, motions, config=dataclasses.replace(TINY, overlap=True))
    overlapped.load_state_dict(plain.state_dict())
    assert len(run(overlapped, 1)) == 1 and overlapped.iteration_count == 2


def test_another_optimizer_cannot_go_on(robot: Robot, motions: MotionSet) -> None:
    plain = make(robot, motions)
    plain.warm_up()
    run(plain, 1)
    muon = make(robot, motions, config=dataclasses.replace(TINY, optimizer="muon"))
    with pytest.raises(
        InputError, match=r"another kind of run: the optimizer's \d+\.\w+ .* fits none of its"
    ) as error:
        muon.load_state_dict(plain.state_dict())
    assert "\n" not in str(error.value)


def test_overlapped_updates_learn_from_the_iteration_before(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the robots act, the replay stays as it is; then it has their steps, taken by the policy
    of the beginning."""
    trainer = make(robot, motions, config=dataclasses.replace(TINY, overlap=True))
    trainer.warm_up()
    seen: list[int] = []
    fit = ModelFit.__call__

    def watched(
        self: ModelFit, replay: Replay, progress: float, generator: torch.Generator
    ) -> dict[str, float]:
        seen.append(replay.filled)
        return fit(self, replay, progress, generator)

    monkeypatch.setattr(ModelFit, "__call__", watched)
    run(trainer, 2)
    assert seen == [12, 16] and trainer.replay.filled == 20
    assert trainer.env_steps == 12 * (12 + 2 * 4)


@pytest.mark.parametrize("first", ["robots", "policy"])
def test_overlapped_threads_have_nothing_in_common(
    robot: Robot, motions: MotionSet, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread is faster: the same numbers come out as if either had waited for the other."""
    config = dataclasses.replace(TINY, overlap=True)
    threaded, ordered = make(robot, motions, config=config), make(robot, motions, config=config)
    for trainer in (threaded, ordered):
        trainer.warm_up()
    expected = run(threaded, 4)

    class Later:
        def __init__(self, work: Callable[[], Any]):
            self.result = work

    class OneAfterTheOther:
        def __init__(self, workers: int):
            assert workers == 1

        def __enter__(self) -> OneAfterTheOther:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, work: Callable[..., Any], *arguments: Any) -> Later:
            if first == "policy":
                return Later(lambda: work(*arguments))
            done = work(*arguments)
            return Later(lambda: done)

    monkeypatch.setattr("npmp.world_model.trainer.ThreadPoolExecutor", OneAfterTheOther)
    assert run(ordered, 4) == expected
    for name, value in threaded.state_dict().items():
        assert torch.equal(ordered.state_dict()[name], value), name


def test_muon_takes_the_matrices_between_hidden_layers(robot: Robot, motions: MotionSet) -> None:
    trainer = make(robot, motions, config=dataclasses.replace(TINY, optimizer="muon"))
    sizes = {
        name: len(o.param_groups[0]["params"]) for name, o in trainer.policy_optimizers.items()
    }
    # encoder: second layer; decoder: two layers of each branch, and the LSTM's two
    assert sizes["policy_muon"] == 7
    assert sum(sizes.values()) == len(list(trainer.skill.parameters()))


def test_a_checkpoint_of_another_run_is_refused(robot: Robot, motions: MotionSet) -> None:
    state = copied(make(robot, motions).state_dict())
    with pytest.raises(InputError, match="another kind of run"):
        make(robot, motions, n=6).load_state_dict(state)
    with pytest.raises(InputError, match="another kind of run"):
        make(robot, motions).load_state_dict(
            {k: v for k, v in state.items() if k != "carried.first"}
        )


def test_what_is_collected_is_what_happened(robot: Robot, motions: MotionSet) -> None:
    """Successive states in the replay are a control step apart wherever it does not say that an
    episode began."""
    trainer = make(robot, motions)
    trainer.warm_up()
    run(trainer, 6)  # more steps than the ring holds
    assert trainer.replay.filled == 24
    window = trainer.replay.windows(300, 1, torch.Generator().manual_seed(0))
    before, after = (RobotState.unpack(s) for s in window.states)
    sound = window.valid[0] > 0
    assert 0.3 < sound.float().mean() < 1.0
    moved = after.root_pos - before.root_pos
    velocity = (after.root_rot @ after.root_vel.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(moved[sound], 0.02 * velocity[sound], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        (after.joint_pos - before.joint_pos)[sound],
        0.02 * after.joint_vel[sound],
        atol=1e-6,
        rtol=0,
    )
    torch.testing.assert_close(after.setpoint[sound], window.setpoints[0][sound])


def test_robots_roaming_freely_are_not_imagined_to_track(robot: Robot, motions: MotionSet) -> None:
    trainer = make(robot, motions, config=dataclasses.replace(TINY, prior_share=0.5))
    trainer.warm_up()
    share = (
        (trainer.replay.frame == trainer.replay.last_frame)[: trainer.replay.filled].float().mean()
    )
    assert 0.1 < share < 0.8
    trainer = make(
        robot, motions, config=dataclasses.replace(TINY, prior_share=0.0, rejoin_rate=0.0)
    )
    trainer.warm_up()
    assert not trainer.env.task.free.any()


def test_learning_lowers_the_imagined_loss(robot: Robot, motions: MotionSet) -> None:
    """On the same moments with the same noise, before and after some updates through the same
    model."""
    config = dataclasses.replace(TINY, model_updates=20, policy_batch=32, model_lr=(3e-3, 3e-3))
    trainer = make(robot, motions, n=16, config=config)
    trainer.warm_up()
    trainer.fit(trainer.replay, 0.0, trainer.generator)
    trainer.fit.freeze()
    for group in trainer.policy_optimizers["policy_optimizer"].param_groups:
        group["lr"] = 3e-3
    fixed = trainer.replay.starts(128, torch.Generator().manual_seed(0))

    @torch.no_grad()
    def loss() -> float:
        return trainer.imagination(fixed, 4, torch.Generator().manual_seed(0)).tracking.item()

    before = loss()
    for _ in range(60):
        trainer.improve_policy(4, 0.0)
    assert loss() < 0.98 * before


@pytest.mark.parametrize(("iterations", "share"), [(0, 0.9), (5, 0.45), (1000, 0.1)])
def test_the_average_trails_the_policy(
    robot: Robot, motions: MotionSet, iterations: int, share: float
) -> None:
    """After two updates an iteration, d = min(ema, (1 + t) / (10 + t)): 1 / 10, 11 / 20, and the 9
    / 10 that are asked for."""
    config = dataclasses.replace(TINY, ema=0.9, policy_updates=2)
    trainer = make(robot, motions, config=config)
    trainer.warm_up()
    trainer.iteration_count = iterations
    start = trainer.skill.decoder.head.weight.detach().clone()
    trainer.improve_policy(3, 0.0)
    moved = trainer.skill.decoder.head.weight.detach() - start
    assert moved.abs().max() > 0
    torch.testing.assert_close(
        trainer.average.decoder.head.weight - start, share * moved, atol=1e-8, rtol=1e-3
    )
    assert not any(p.requires_grad for p in trainer.average.parameters())
    # which the policy learns through
    assert not any(p.requires_grad for p in trainer.fit.frozen.parameters())
    assert all(p.requires_grad for p in trainer.model.parameters())


def test_one_bad_batch_does_not_poison_the_policy(robot: Robot, motions: MotionSet) -> None:
    trainer = make(robot, motions)
    trainer.warm_up()
    before = copied(trainer.skill.state_dict())
    trainer.replay.floats["state"].fill_(float("nan"))
    trainer.improve_policy(3, 0.0)
    assert all(torch.equal(v, before[k]) for k, v in trainer.skill.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replay_steps": 5}, "replay_steps"), ({"warmup_steps": 4}, "warmup_steps"),
        ({"prior_share": 1.0}, "prior_share"),
        ({"burn_in": 12}, "burn_in"), ({"optimizer": "sgd"}, "optimizer"),
    ],
)  # fmt: skip
def test_contradictory_settings_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **change)  # type: ignore[arg-type]


def test_what_imagination_leaves_out_is_left_out(robot: Robot, motions: MotionSet) -> None:
    """Without physics the model has that many inputs less and the replay keeps none; without
    sensors the decoder sees exactly."""
    plant = RobotBatchConfig(
        physics=PhysicsConfig(friction=(0.4, 1.0)), pushes=PushConfig(force=10.0),
        sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.1),
    )  # fmt: skip
    env = imitation_env(robot, motions, 4, robots=plant)
    sizes = {}
    for told in (True, False):
        config = dataclasses.replace(TINY, model_physics=told, imagine_sensors=told)
        trainer = WorldModelTrainer(env, NET, config)
        trainer.warm_up()
        assert math.isfinite(trainer.iteration(0.0)["tracking_loss"])
        sizes[told] = trainer.model.net[0].in_features
        assert trainer.replay.floats["physics"].shape[-1] == (
            env.robots.physics_size if told else 0
        )
        assert trainer.imagination.sensing.noisy == told
    assert sizes[True] - sizes[False] == env.robots.physics_size > 0
