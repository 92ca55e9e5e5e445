"""MO-V-MPO for imitation, as robot-NPMP trained its skill modules, at the scale of one machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.checkpoint import fitting, prefixed, under
from npmp.envs.features import encoder_context
from npmp.envs.imitation import ImitationEnv
from npmp.envs.rewards import REWARD_TERMS
from npmp.imitation.networks import new_networks
from npmp.imitation.policy import (
    CriticInput,
    ImitationPolicy,
    ImitationPolicyInput,
    ImitationPolicyState,
    prior_weight,
)
from npmp.nets import NetConfig
from npmp.rl import Rollout, VMPOConfig, VMPOLearner
from npmp.rl.tree import stack_trees
from npmp.skill import SkillModule


@dataclass(frozen=True)
class MOVMPOConfig:
    """Settings of MO-V-MPO in imitation; sources with the values in conf/algo/mo_vmpo.yaml. Raises ValueError out of
    range."""

    unroll: int = 32  # control steps per robot and iteration
    updates: int = 2  # passes over an unroll
    minibatches: int = 4  # groups of robots per pass, one gradient step each
    initial_std: float = 0.2  # of the setpoints [rad]
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    beta: float = 0.03  # weight of the KL to the prior at the end of its course, per nat summed over latent dimensions
    beta_power: float = 0.2  # beta (1 - (1 - min(1, k / K))^power)
    beta_ramp: float = 0.5  # K, as a share of the run
    learner: VMPOConfig = field(
        default_factory=lambda: VMPOConfig(
            objectives=REWARD_TERMS, epsilon_std=1e-3, target_period=8, learning_rate=1e-3, dual_learning_rate=3e-2,
            initial_alpha_mean=0.1, initial_alpha_std=0.1, popart_step_size=3e-3,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "updates", "minibatches", "critic_hidden")
        ranges.above_zero(self, "initial_std", "beta_power", "beta_ramp")
        ranges.not_negative(self, "beta")

    def beta_at(self, progress: float) -> float:
        """The weight of the KL when a share of the run is done (robot-NPMP): slow at first, steep at the end of the
        ramp."""
        return prior_weight(progress, self.beta, self.beta_power, self.beta_ramp)


class MOVMPOTrainer:
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    The policy that acts is the learner's target network, sampling latents and setpoints. An iteration is one unroll of
    all robots and the updates from it. Episodes go on across unrolls. Each term of the reward is an objective of its
    own; their sum is only reported.
    """

    def __init__(self, env: ImitationEnv, net: NetConfig, config: MOVMPOConfig, *, seed: int = 0, horizon: int = 5):
        """Build everything on the environment's device.

        Args:
          env: the robots to collect with.
          horizon: reference frames that the encoder looks ahead.

        Raises: InputError for objectives that are not the environment's, or more minibatches than robots.
        """
        self.env, self.config = env, config
        if config.learner.objectives != tuple(env.objectives):
            raise InputError(
                f"the task's objectives are {list(env.objectives)}, the algorithm's {list(config.learner.objectives)}"
            )
        if config.minibatches > env.num_envs:
            raise InputError(
                f"{config.minibatches} minibatches need as many robots, there are {env.num_envs} (algo.num_envs)"
            )
        self.features, policy, critic = new_networks(
            env, net, seed=seed, horizon=horizon, initial_std=config.initial_std,
            critic_hidden=config.critic_hidden, objectives=len(env.objectives),
        )  # fmt: skip
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.learner = VMPOLearner(policy, critic, config.learner)
        self.carried = policy.initial_state(env.num_envs)
        self.first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.range = torch.full((net.latent_dim,), 0.1, device=env.device)  # of the latents lately seen
        self.iteration_count = 0
        self.env_steps = 0

    @property
    def policy(self) -> ImitationPolicy:
        """The online policy."""
        policy = self.learner.policy
        assert isinstance(policy, ImitationPolicy)  # given in the constructor; for the type checker
        return policy

    @property
    def average(self) -> SkillModule:
        """What is evaluated: the online policy's module."""
        return self.policy.skill

    def module(self) -> SkillModule:
        """A copy of the module, with the range of the latents that imitation has used lately."""
        return self.policy.module(self.range)

    def _critic_input(self, z: Tensor) -> CriticInput:
        env = self.env
        context = encoder_context(self.features, env.state, env.frame, env.last_frame, env.home)
        return CriticInput(context, z, env.clip.clone(), env.plant.physics.clone())

    # --- collection
    # ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots.

        Returns: the rollout; means over its steps: `error` (eq. 2), `failures_per_s`, `reward`.
        """
        env, steps, start = self.env, self.config.unroll, self.carried
        rows, latents = [], []
        error, failures = 0.0, 0.0
        for _ in range(steps):
            known = self._critic_input(self.carried.z.masked_fill(self.first.unsqueeze(-1), 0.0))
            noise = torch.randn(known.z.shape, generator=self.generator, device=env.device)
            given = ImitationPolicyInput(known.context, env.observe(), noise)
            action, log_prob, self.carried = self.learner.act(given, self.carried, self.first, generator=self.generator)
            step = env.step(action)
            rows.append(
                {
                    "observations": given,
                    "actions": action,
                    "behaviour_log_prob": log_prob,
                    "resets": self.first,
                    "rewards": step.rewards.nan_to_num(),
                    "terminated": step.terminated,
                    "truncated": step.truncated,
                    # of the true successor: the environment is reset only below
                    "next_observations": self._critic_input(self.carried.z),
                    "critic_observations": known,
                }
            )
            latents.append(self.carried.z)
            error += step.error.nan_to_num(1.0).clamp(max=1.0).mean().item()
            failures += step.terminated.float().mean().item()
            self.first = step.terminated | step.truncated
            env.reset(self.first)
        self.env_steps += steps * env.num_envs
        stacked = stack_trees(rows)
        self.range = torch.quantile(torch.cat(latents).abs(), 0.99, dim=0).clamp(min=0.1)
        return Rollout(**stacked, initial_state=start), {
            "error": error / steps,
            "failures_per_s": failures / steps / env.dt,
            "reward": stacked["rewards"].sum(-1).mean().item(),
        }

    def warm_up(self) -> None:
        """Nothing: the first unroll is as good as any."""

    def iteration(self, progress: float) -> dict[str, float]:
        """One unroll and its updates; progress in [0, 1] is the share of the run done. Returns metrics for the log."""
        self.learner.regularizer_weight = self.config.beta_at(progress)
        rollout, metrics = self.collect()
        learned = self.learner.learn(
            rollout, passes=self.config.updates, minibatches=self.config.minibatches, generator=self.generator
        )
        self.iteration_count += 1
        metrics |= {name.replace("/", "_"): value for name, value in learned.items()}
        metrics["kl"] = metrics.pop("loss_regularizer")  # to the latent prior [nats per step]
        return metrics | {
            "beta": self.learner.regularizer_weight,
            "action_std": self.policy.log_std.exp().mean().item(),
        }

    # --- checkpoints
    # --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on: a resumed run equals an uninterrupted one."""
        return {
            **prefixed("learner", self.learner.state_dict()),
            **prefixed("env", self.env.state_dict()),
            **prefixed("carried", self.carried._asdict()),
            "generator": self.generator.get_state(),
            "first": self.first,
            "range": self.range,
            "counts": torch.tensor([self.iteration_count, self.env_steps]),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken.

        Raises: InputError when it belongs to a run with other networks or numbers of robots.
        """
        with fitting():
            if state["first"].shape != self.first.shape:
                raise ValueError(f"{len(state['first'])} robots do not fit {len(self.first)}")
            self.learner.load_state_dict(under("learner", state))
            self.env.load_state_dict(under("env", state))
            carried = under("carried", state).items()
            self.carried = ImitationPolicyState(**{k: v.to(self.first.device, copy=True) for k, v in carried})
            self.generator.set_state(state["generator"])
            self.first, self.range = (state[name].to(self.first.device, copy=True) for name in ("first", "range"))
            self.iteration_count, self.env_steps = state["counts"].tolist()
