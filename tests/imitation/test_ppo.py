"""PPO in imitation: returns at ends of episodes by hand, the re-run finds what happened, runs
repeat and resume to the bit."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from mocap_data.store import MotionSet, write_motions
from npmp import SkillModule, checkpoint
from npmp.envs import EnvStep
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.experiments import imitate
from npmp.imitation import ImitationPolicyInput, ImitationPolicyState, PPOConfig, PPOTrainer
from npmp.nets import NetConfig
from npmp.rl import NonFiniteGradient
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from tests.environments import imitation_env

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
TINY = PPOConfig(unroll=6, epochs=2, mini_batches=2, critic_hidden=(16,))
RANDOMIZED = RobotBatchConfig(
    hold="first_order",
    physics=PhysicsConfig(mass=Spread(0.2), friction=(0.5, 1.0)),
    pushes=PushConfig(force=30.0),
    sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.01),
)


def make(
    robot: Robot,
    motions: MotionSet,
    seed: int = 0,
    n: int = 8,
    config: PPOConfig = TINY,
    robots: RobotBatchConfig = RANDOMIZED,
) -> PPOTrainer:
    pytest.importorskip("rsl_rl", reason="the extra ppo is not installed")
    env = imitation_env(robot, motions, n, seed=seed, robots=robots)
    return PPOTrainer(env, NET, config, seed=seed)


def run(trainer: PPOTrainer, iterations: int, total: int = 8) -> list[dict[str, float]]:
    return [trainer.iteration(trainer.iteration_count / total) for _ in range(iterations)]


def end_soon(trainer: PPOTrainer) -> None:
    """All robots but the last two three steps before their clip's end."""
    clip = torch.zeros(6, dtype=torch.long)
    frame = trainer.env.task.reference.last_frame(clip) - 3
    trainer.env.reset(torch.arange(8) < 6, clip=clip, frame=frame)


class Clock(nn.Module):
    """A critic that gives a state 10 and one for every control step before it."""

    is_recurrent = False
    steps = 0

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.full((len(obs["z"]), 1), 10.0 + self.steps)

    def reset(self, dones: Tensor | None = None, hidden_state: None = None) -> None:
        pass

    def get_hidden_state(self) -> None:
        return None


def test_returns_where_episodes_go_on_fail_and_are_truncated(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of reward 1, gamma = lambda = 1/2, values 10, 11, 12 and then 13.

    Going on: advantages 1 + 13/2 - 12 = -4.5, 1 + 12/2 - 11 - 4.5/4 = -5.125, 1 + 11/2 - 10 -
    5.125/4 = -4.78125. Failed at the second step: 1 - 11 = -10, so the first has -3.5 - 10/4 = -6.
    Truncated there: the successor's value 12 counts, 1 + 12/2 - 11 = -4 (its predecessor's 11 would
    make -4.5), and nothing of what follows: the first has -3.5 - 1 = -4.5.
    """
    config = dataclasses.replace(
        TINY, unroll=3, mini_batches=1, gamma=0.5, gae_lambda=0.5, reward_scale=1.0
    )
    trainer = make(robot, motions, n=3, config=config)
    clock = Clock()
    monkeypatch.setattr(trainer, "critic", clock)
    trainer.learner.critic = clock
    step = trainer.env.step

    def scripted(action: Tensor) -> EnvStep:
        result, clock.steps = step(action), clock.steps + 1
        end = (
            torch.tensor([False, clock.steps == 2, False]),
            torch.tensor([False, False, clock.steps == 2]),
        )
        return result._replace(rewards=torch.full((3, 5), 0.2), terminated=end[0], truncated=end[1])

    monkeypatch.setattr(trainer.env, "step", scripted)
    assert trainer.collect()["reward"] == pytest.approx(1.0)
    advantages = torch.tensor([[-4.78125, -6.0, -4.5], [-5.125, -10.0, -4.0], [-4.5, -4.5, -4.5]])
    values = torch.tensor([10.0, 11.0, 12.0]).unsqueeze(-1)
    storage = trainer.learner.storage
    torch.testing.assert_close(storage.returns.squeeze(-1), advantages + values)
    torch.testing.assert_close(
        storage.advantages.squeeze(-1), (advantages - advantages.mean()) / advantages.std()
    )


def batches(trainer: PPOTrainer, groups: int) -> Iterator[Any]:
    return trainer.learner.storage.recurrent_mini_batch_generator(groups, 1)


@pytest.mark.parametrize("config", [RANDOMIZED, RobotBatchConfig()], ids=["randomized", "nominal"])
def test_the_re_run_finds_what_happened_across_ends_of_episodes(
    robot: Robot, motions: MotionSet, config: RobotBatchConfig
) -> None:
    trainer = make(robot, motions, robots=dataclasses.replace(config, pushes=PushConfig()))
    run(trainer, 1)  # memories and latents are not empty when the next unroll begins
    end_soon(trainer)
    trainer.collect()
    storage = trainer.learner.storage
    assert bool(storage.dones[:-1].any(0)[:6].all())
    assert bool((trainer.carried.memory.z[storage.dones[-1, :, 0] == 1] == 0).all())
    fresh = storage.observations["z"][1:][storage.dones[:-1, :, 0] == 1]
    assert len(fresh) >= 6 and bool((fresh == 0).all())
    for batch in batches(trainer, 2):
        mean = trainer.actor(
            batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0]
        )
        torch.testing.assert_close(mean, batch.old_distribution_params[0], atol=1e-5, rtol=1e-4)
        again = trainer.actor.get_output_log_prob(batch.actions)
        torch.testing.assert_close(
            again, batch.old_actions_log_prob.squeeze(-1), atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(
            trainer.critic(batch.observations, masks=batch.masks), batch.values
        )
        old = batch.old_distribution_params
        assert (
            trainer.actor.get_kl_divergence(old, trainer.actor.output_distribution_params).max()
            < 1e-6
        )


def gradients(trainer: PPOTrainer, beta: float) -> dict[str, Tensor]:
    """Of the first mini-batch after one unroll."""
    trainer.penalty.mirror_loss_coeff = beta
    trainer.collect()
    found: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        found.update(
            {
                name: p.grad.clone()
                for name, p in trainer.policy.named_parameters()
                if p.grad is not None
            }
        )

    trainer.learner.optimizer.register_step_pre_hook(keep)
    trainer.learner.update()
    return found


def test_the_kl_to_the_prior_is_a_loss_of_weight_beta(robot: Robot, motions: MotionSet) -> None:
    """The gradients with beta 2 and 0 differ by twice that of the mean KL, here of
    `ImitationPolicy` over what is stored."""

    def prepared() -> PPOTrainer:
        trainer = make(
            robot,
            motions,
            config=dataclasses.replace(TINY, epochs=1, mini_batches=1, max_gradient_norm=1e9),
        )
        torch.manual_seed(0)  # of the weights that are drawn here, alike in all three
        torch.nn.init.normal_(trainer.policy.skill.encoder.head.weight, std=0.3)
        end_soon(trainer)
        return trainer

    without, weighted = gradients(prepared(), 0.0), gradients(prepared(), 2.0)
    trainer = prepared()
    start = ImitationPolicyState(*(part.clone() for part in trainer.actor.state))
    trainer.collect()
    seen, ends = trainer.learner.storage.observations, trainer.learner.storage.dones[..., 0] == 1
    resets = torch.cat((torch.zeros(1, 8, dtype=torch.bool), ends[:-1]))
    given = ImitationPolicyInput(seen["context"], seen["proprioception"], seen["noise"])
    trainer.policy(given, start, resets)[3].mean().backward()
    for name, p in trainer.policy.named_parameters():
        expected = without[name] + 2.0 * (torch.zeros_like(p) if p.grad is None else p.grad)
        torch.testing.assert_close(weighted[name], expected, atol=1e-5, rtol=1e-3)
    difference = weighted["skill.encoder.head.weight"] - without["skill.encoder.head.weight"]
    assert difference.abs().max() > 1e-4  # there is something to compare


def test_the_same_seed_gives_the_same_numbers_and_runs_resume(
    robot: Robot, motions: MotionSet
) -> None:
    whole, again = make(robot, motions), make(robot, motions)
    first = run(whole, 3)
    assert (
        first[0]["beta"] == 0.0
        and first[2]["beta"] > 0.0
        and first[2]["learning_rate"] != TINY.learning_rate
    )
    torch.manual_seed(99)  # nothing draws from torch's own generator after the initial weights
    untouched = torch.get_rng_state()
    assert first == run(again, 3)
    assert torch.equal(torch.get_rng_state(), untouched)
    kept = {k: v.clone() for k, v in whole.state_dict().items()}
    expected = run(whole, 3)
    resumed = make(robot, motions, seed=5)
    resumed.load_state_dict(kept)
    assert run(resumed, 3) == expected
    final = resumed.state_dict()
    assert all(torch.equal(v, final[k]) for k, v in whole.state_dict().items())


def test_all_of_the_policy_learns_and_is_a_skill_module(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    trainer = make(robot, motions)
    before = {k: v.clone() for k, v in trainer.policy.state_dict().items()}
    run(trainer, 2)
    moved = {k for k, v in trainer.policy.state_dict().items() if not torch.equal(v, before[k])}
    for name in (
        "skill.encoder.head.weight",
        "skill.decoder.lstm.weight_hh",
        "skill.decoder.head.weight",
        "log_std",
    ):
        assert name in moved
    module = trainer.module()
    module.save(tmp_path / "module")
    loaded = SkillModule.load(tmp_path / "module")
    loaded.check_robot(robot)
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in module.state_dict().items())
    assert torch.equal(loaded.latent_range, trainer.range) and trainer.range.shape == (4,)


def test_a_gradient_that_is_no_number_changes_nothing(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(robot, motions)
    before = {k: v.clone() for k, v in trainer.policy.state_dict().items()}
    learner, compute = trainer.learner, trainer.learner.compute_returns

    def spoilt(obs: object) -> None:
        compute(obs)
        learner.storage.returns[0, 0] = torch.nan

    monkeypatch.setattr(learner, "compute_returns", spoilt)
    with pytest.raises(NonFiniteGradient):
        trainer.iteration(0.0)
    assert all(torch.equal(v, before[k]) for k, v in trainer.policy.state_dict().items())
    monkeypatch.undo()
    assert trainer.iteration(0.0)["loss_value"] > 0.0 and trainer.iteration_count == 1


def test_what_does_not_fit_is_refused(robot: Robot, motions: MotionSet) -> None:
    with pytest.raises(InputError, match=r"8 robots .* cannot be divided into 3 mini_batches"):
        make(robot, motions, config=dataclasses.replace(TINY, mini_batches=3))
    with pytest.raises(InputError, match="too few for 8 mini_batches: each needs at least 2"):
        make(robot, motions, config=dataclasses.replace(TINY, mini_batches=8))
    kept = make(robot, motions).state_dict()
    with pytest.raises(InputError, match="another kind of run"):
        make(robot, motions, n=4).load_state_dict(kept)
    with pytest.raises(ValueError, match="gae_lambda"):
        PPOConfig(gae_lambda=1.5)


def test_a_divergence_of_nan_is_passed_on(robot: Robot, motions: MotionSet) -> None:
    """To the check of the gradients, which counts it; torch's distributions would raise of their
    own."""
    actor, one = make(robot, motions).actor, torch.ones(2, 3)
    assert actor.get_kl_divergence((one, one), (torch.nan * one, one)).isnan().all()
    assert actor.get_kl_divergence((one, one), (one + 1.0, one)).tolist() == pytest.approx(
        [1.5, 1.5]
    )


def test_without_the_extra_it_says_what_to_install(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rsl_rl", "rsl_rl.algorithms"):
        monkeypatch.setitem(sys.modules, name, None)
    env = imitation_env(robot, motions, 2)
    with pytest.raises(InputError, match=r"pip install 'npmp\[ppo\]'"):
        PPOTrainer(env, NET, TINY)


def test_the_command_goes_on_after_a_kill_to_the_same_bytes(
    motions: MotionSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rsl_rl", reason="the extra ppo is not installed")
    write_motions(tmp_path / "motions.h5", motions)
    small = [
        f"data={tmp_path / 'motions.h5'}", "algo=ppo", "num_envs=8", "algo.unroll=8", "algo.critic_hidden=[16]",
        "steps=320", "net.latent_dim=4", "net.encoder_width=16", "net.decoder_width=16", "net.lstm_width=8",
        "threads=1",
        "randomization=paper", "checkpoint_every=2", "evaluation.every=2", "evaluation.starts=2",
    ]  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert imitate.main([*small, f"out={whole}"]) == 0
    iteration = PPOTrainer.iteration

    def dies_in_the_fourth(self: PPOTrainer, progress: float) -> dict[str, float]:
        if self.iteration_count == 3:
            raise OSError("the process is killed")
        return iteration(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(PPOTrainer, "iteration", dies_in_the_fourth)
        assert imitate.main([*small, f"out={cut}"]) != 0
    assert checkpoint.load_latest(cut / "checkpoints")[0] == 2
    assert imitate.main([f"resume={cut}"]) == 0
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    ours, theirs = (SkillModule.load(run / "module") for run in (cut, whole))
    assert all(torch.equal(v, theirs.state_dict()[k]) for k, v in ours.state_dict().items())
    assert (
        ours.contract.training["algorithm"] == "ppo" and ours.contract.training["env_steps"] == 320
    )
