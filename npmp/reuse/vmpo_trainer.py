"""Training a high-level policy by V-MPO in latent space: the module's frozen decoder is part of the
environment."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from npmp.actors import SkillMemory, skill_memory
from npmp.envs.features import Normalizer
from npmp.envs.task_env import TaskEnv
from npmp.nets.high_level import HighLevelCritic
from npmp.nets.init import seeded
from npmp.nets.prior import kl_to_prior
from npmp.reuse.actor import PolicyMemory
from npmp.reuse.policy import HighLevelPolicy, PolicyInput, command_scales
from npmp.rl import Rollout, VMPOConfig, VMPOLearner
from npmp.rollout import Carried, Decision, Moment, learning_row, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import stack_trees


@dataclass(frozen=True)
class VMPOTrainerConfig:
    """Settings of V-MPO in reuse; sources with the values in conf/algo/vmpo.yaml."""

    unroll: int = 20  # control steps per robot and iteration
    updates: int = 4  # gradient steps per unroll
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    # `objectives` are the task's, whatever is said here
    learner: VMPOConfig = field(
        default_factory=lambda: VMPOConfig(
            epsilon_std=1e-3, gamma=0.97, target_period=10, learning_rate=1e-3,
            dual_learning_rate=3e-2, initial_alpha_mean=0.1, initial_alpha_std=0.1, regularizer_weight=0.01,
            popart_step_size=3e-3,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.unroll < 1 or self.updates < 1 or min(self.critic_hidden, default=0) < 1:
            raise ValueError(
                f"unroll, updates and every width of critic_hidden must be at least 1; got {self.unroll}, "
                f"{self.updates}, "
                f"{self.critic_hidden}"
            )


class PrivilegedCritic(nn.Module):
    """Values from all that there is to know (`Task.privileged`) and the latent in force, scaled by
    fixed figures."""

    def __init__(self, size: int, hidden: tuple[int, ...], objectives: int):
        super().__init__()
        self.scale = Normalizer(size)
        self.net = HighLevelCritic(size, hidden, objectives)

    @property
    def value_head(self) -> nn.Linear:
        """The layer that PopArt rescales."""
        return self.net.value_head

    def forward(self, observation: Tensor) -> Tensor:
        """(..., size) raw -> (..., K)."""
        return self.net(self.scale(observation))


class VMPOTrainer(Resumable):
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    The policy that acts is the learner's target network, sampling; the decoder acts by its mean. An
    iteration is one unroll of all robots and the updates from it. Episodes go on across unrolls.
    """

    of_all_collectors, joins = False, True

    def __init__(
        self,
        env: TaskEnv[Any],
        skill: SkillModule,
        policy: HighLevelPolicy,
        config: VMPOTrainerConfig | None = None,
        *,
        seed: int = 0,
    ):
        """Build everything on the environment's device; skill and policy are moved there.

        Args:
          env: the robots to collect with.
          skill: a copy of it is used, frozen.
          policy: is trained in place.

        Raises:
          InputError: for a module of another robot, or bounds that are not as many as the task's
            objectives.
        """
        self.env, self.config = env, config or VMPOTrainerConfig()
        skill.check_robot(env.robot)
        rules = replace(self.config.learner, objectives=tuple(env.objectives))
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        policy.to(env.device)
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        privileged = env.task.privileged().shape[-1]
        with seeded(seed):
            width = privileged + skill.latent_dim
            self.critic = PrivilegedCritic(
                width, self.config.critic_hidden, len(env.objectives)
            ).to(env.device)
        known = [
            *((low, high) for low, high in policy.contract.command_range),
            *env.task.extra_inputs.values(),
        ]
        _fit_critic_scales(self.critic.scale, self.skill, known, env.num_actions)
        self.learner = VMPOLearner(policy, self.critic, rules, self._kl_to_prior)
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = Carried(self.initial_memory(env.num_envs), first)
        self.iteration_count = 0
        self.env_steps = 0

    @property
    def policy(self) -> HighLevelPolicy:
        """The online policy: what is evaluated and saved."""
        policy = self.learner.policy
        assert isinstance(policy, HighLevelPolicy)  # given in the constructor; for the type checker
        return policy

    def _kl_to_prior(self, rollout: Rollout, mean: Tensor, std: Tensor) -> Tensor:
        """KL[policy || AR(1) prior] of every step, summed over latent dimensions, [T, B] [nats]."""
        return kl_to_prior(mean, std, rollout.observations.z_prev, self.policy.contract.alpha)

    # --- collection ---

    def initial_memory(self, n: int) -> PolicyMemory:
        """As `npmp.rollout.Actor.initial_memory`."""
        return PolicyMemory(self.policy.initial_state(n), skill_memory(self.skill, n))

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> Decision:
        """As `npmp.rollout.Actor.act`: the target network samples a latent, the decoder acts by its
        mean."""
        seen, before = env.observe(), memory.skill
        given = PolicyInput(seen, env.task.observe(), before.z)
        known = self._known(before.z)
        z, log_prob, policy = self.learner.act(
            given, memory.policy, first, generator=self.generator
        )
        action, decoder = self.skill.decode(z, seen, before.decoder)
        note = {
            "observations": given,
            "actions": z,
            "behaviour_log_prob": log_prob,
            "critic_observations": known,
        }
        return Decision(action, PolicyMemory(policy, SkillMemory(z, decoder)), note)

    def _known(self, z: Tensor) -> Tensor:
        """What the critic sees of the present state; z (n, d) the latent of the step before."""
        return torch.cat((self.env.task.privileged(), z), -1)

    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots.

        Returns: the rollout; means over its steps: `reward`, the task's error by its name,
        `falls_per_s` (per robot).
        """
        env, steps, start = self.env, self.config.unroll, self.carried
        rows: list[dict[str, Any]] = []

        def record(moment: Moment) -> None:
            rows.append(learning_row(moment, self._known(moment.decision.memory.skill.z)))

        self.carried = rollout(self, env, steps, record, carried=start)
        stacked = stack_trees(rows)
        error = stacked.pop("error").nan_to_num(0.0)
        return Rollout(**stacked, initial_state=start.memory.policy), {
            "reward": stacked["rewards"].sum(-1).mean().item(),
            env.task.error_name: error.mean().item(),
            "falls_per_s": stacked["terminated"].float().mean().item() / env.dt,
        }

    # --- learning ---

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """One unroll and its updates; progress (the share of the run done) changes nothing here.
        Returns metrics for the log."""
        gathered = gathered or self.gather(progress)
        self.env_steps += gathered.env_steps
        del progress
        learned = self.learner.learn(gathered.data, passes=self.config.updates)
        self.iteration_count += 1
        metrics = gathered.figures | {
            name.replace("/", "_"): value for name, value in learned.items()
        }
        metrics["kl"] = metrics.pop("loss_regularizer")  # to the latent prior [nats per step]
        return metrics

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a rollout."""
        del progress
        collected, figures = self.collect()
        return Gathered(collected, figures | self.env.ground.figures(), collected.num_steps)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: an update of several collectors' robots."""
        joined = Rollout.joined([part.data for part in parts])
        return Gathered(joined, mean_figures(parts), sum(part.env_steps for part in parts))

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
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }


def _fit_critic_scales(
    scale: Normalizer, skill: SkillModule, ranges: Sequence[tuple[float, float]], joints: int
) -> None:
    """The module's own scales of the true state (the last part of its encoder's context), those of
    what the policy is told by its range; drawn physics, pushes and latents are about 1 as they are.
    """
    known, width = skill.context_scale, 13 + 3 * joints
    told = command_scales(ranges)
    middle, half = (part.to(known.mean) for part in told)
    rest = len(scale.mean) - width - len(middle)
    scale.mean.copy_(torch.cat((known.mean[-width:], middle, known.mean.new_zeros(rest))))
    scale.std.copy_(torch.cat((known.std[-width:], half, known.std.new_ones(rest))))
