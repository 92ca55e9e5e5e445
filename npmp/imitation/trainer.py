"""MO-V-MPO for imitation, as robot-NPMP trained its skill modules, at the scale of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.imitation.networks import OnPolicyConfig, new_networks
from npmp.imitation.policy import (
    ImitationPolicy,
    ImitationPolicyInput,
    ImitationPolicyState,
    critic_input,
)
from npmp.nets import NetConfig
from npmp.rl import Rollout, VMPOConfig, VMPOLearner
from npmp.rollout import Carried, Decision, Moment, learning_row, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.tasks.imitation import ImitationEnv
from npmp.tasks.rewards import CURRENT, REWARD_TERMS
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import stack_trees


@dataclass(frozen=True)
class MOVMPOConfig(OnPolicyConfig):
    """Settings of MO-V-MPO in imitation; sources with the values in conf/algo/mo_vmpo.yaml. Raises
    ValueError out of range."""

    unroll: int = 32  # control steps per robot and iteration
    updates: int = 2  # passes over an unroll
    minibatches: int = 4  # groups of robots per pass, one gradient step each
    learner: VMPOConfig = field(
        default_factory=lambda: VMPOConfig(
            objectives=REWARD_TERMS, epsilon_std=1e-3, target_period=8, learning_rate=1e-3, dual_learning_rate=3e-2,
            initial_alpha_mean=0.1, initial_alpha_std=0.1, popart_step_size=3e-3,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "unroll", "updates", "minibatches")


class MOVMPOTrainer(Resumable):
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    The policy that acts is the learner's target network, sampling latents and setpoints. An
    iteration is one unroll of all robots and the updates from it. Episodes go on across unrolls.
    Each term of the reward is an objective of its own; their sum is only reported.
    """

    of_all_collectors, joins = False, True

    def __init__(self, env: ImitationEnv, net: NetConfig, config: MOVMPOConfig, *, seed: int = 0):
        """Build everything on the environment's device.

        env: the robots to collect with.

        Raises:
          InputError: for objectives that are not the environment's, or more minibatches than
            robots.
        """
        self.env, self.config, rules = env, config, config.learner
        # the task's weight alone switches it on
        if CURRENT in env.objectives and CURRENT not in rules.objectives:
            rules = replace(rules, objectives=(*rules.objectives, CURRENT))
        if rules.objectives != tuple(env.objectives):
            raise InputError(
                f"the task's objectives are {list(env.objectives)}, the algorithm's {list(rules.objectives)}"
            )
        if config.minibatches > env.num_envs:
            raise InputError(
                f"{config.minibatches} minibatches need as many robots, there are {env.num_envs} (num_envs)"
            )
        policy, critic = new_networks(env, net, config, seed=seed, objectives=len(env.objectives))
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.learner = VMPOLearner(policy, critic, rules)
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = Carried(policy.initial_state(env.num_envs), first)
        # of the latents lately seen
        self.range = torch.full((net.latent_dim,), 0.1, device=env.device)
        self.iteration_count = 0
        self.env_steps = 0

    @property
    def policy(self) -> ImitationPolicy:
        """The online policy."""
        policy = self.learner.policy
        assert isinstance(policy, ImitationPolicy)  # given in the constructor; for the type checker
        return policy

    def module(self) -> SkillModule:
        """A copy of the module, with the range of the latents that imitation has used lately."""
        return self.policy.module(self.range)

    # --- collection ---

    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots.

        Returns: the rollout; means over its steps: `error` (eq. 2), `failures_per_s`, `reward`.
        """
        env, steps, start = self.env, self.config.unroll, self.carried
        rows: list[dict[str, object]] = []
        latents: list[Tensor] = []

        def record(moment: Moment) -> None:
            rows.append(learning_row(moment, critic_input(env, moment.decision.memory.z)))
            latents.append(moment.decision.memory.z)

        self.carried = rollout(
            _Sampler(self.learner, self.generator), env, steps, record, carried=start
        )
        stacked = stack_trees(rows)
        error = stacked.pop("error").nan_to_num(1.0).clamp(max=1.0)
        self.range = torch.quantile(torch.cat(latents).abs(), 0.99, dim=0).clamp(min=0.1)
        return Rollout(**stacked, initial_state=start.memory), {
            "error": error.mean().item(),
            "failures_per_s": stacked["terminated"].float().mean().item() / env.dt,
            "reward": stacked["rewards"].sum(-1).mean().item(),
        }

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """One unroll and its updates; progress in [0, 1] is the share of the run done. Returns
        metrics for the log."""
        gathered = gathered or self.gather(progress)
        self.env_steps += gathered.env_steps
        self.learner.regularizer_weight = self.config.beta_at(progress)
        collected, self.range = gathered.data
        learned = self.learner.learn(
            collected,
            passes=self.config.updates,
            minibatches=self.config.minibatches,
            generator=self.generator,
        )
        self.iteration_count += 1
        metrics = gathered.figures | {
            name.replace("/", "_"): value for name, value in learned.items()
        }
        metrics["kl"] = metrics.pop("loss_regularizer")  # to the latent prior [nats per step]
        return metrics | {
            "beta": self.learner.regularizer_weight,
            "action_std": self.policy.log_std.exp().mean().item(),
        }

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a rollout, and the range of its latents."""
        del progress
        collected, figures = self.collect()
        return Gathered((collected, self.range), figures, collected.num_steps)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: an update of several collectors' robots."""
        rollouts, ranges = zip(*(part.data for part in parts), strict=True)
        data = Rollout.joined(rollouts), torch.stack(ranges).amax(0)
        return Gathered(data, mean_figures(parts), sum(part.env_steps for part in parts))

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Distributable.acting_weights`: the target network's."""
        return self.learner.target_policy.state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.learner.target_policy.load_state_dict(weights)

    # --- checkpoints ---

    def _parts(self) -> dict[str, Part]:
        return {
            "learner": self.learner,
            "env": self.env,
            "carried": self.carried,
            "generator": self.generator,
            "range": self.range,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }


class _Sampler:
    """The acting policy: latents and setpoints sampled. Its notes are what the learner takes of a
    step."""

    def __init__(self, learner: VMPOLearner, generator: torch.Generator):
        self.learner, self.generator = learner, generator

    def initial_memory(self, n: int) -> ImitationPolicyState:
        """As `Actor.initial_memory`."""
        policy = self.learner.target_policy
        assert isinstance(policy, ImitationPolicy)  # a copy of the trainer's; for the type checker
        return policy.initial_state(n)

    def act(self, env: ImitationEnv, memory: ImitationPolicyState, first: Tensor) -> Decision:
        """As `Actor.act`."""
        known = critic_input(env, memory.z)
        noise = torch.randn(memory.z.shape, generator=self.generator, device=env.device)
        given = ImitationPolicyInput(known.context, env.observe(), noise)
        action, log_prob, after = self.learner.act(given, memory, first, generator=self.generator)
        note = {
            "observations": given,
            "actions": action,
            "behaviour_log_prob": log_prob,
            "critic_observations": known,
        }
        return Decision(action, after, note)
