"""Training a high-level policy by V-MPO in latent space: the module's frozen decoder is part of the environment."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.checkpoint import fitting, prefixed, under
from npmp.envs.features import Normalizer, true_state
from npmp.envs.state import RobotState
from npmp.envs.walking import WalkingEnv
from npmp.nets import DecoderState
from npmp.nets.high_level import HighLevelCritic, HighLevelState
from npmp.nets.prior import kl_to_prior
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rl import Rollout, VMPOConfig, VMPOLearner
from npmp.rl.tree import stack_trees
from npmp.skill import SkillModule


@dataclass(frozen=True)
class VMPOTrainerConfig:
    """Settings of V-MPO in reuse; sources with the values in conf/algo/vmpo.yaml."""

    unroll: int = 20  # control steps per robot and iteration
    updates: int = 4  # gradient steps per unroll
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    learner: VMPOConfig = field(
        default_factory=lambda: VMPOConfig(
            objectives=("velocity",), epsilon_std=1e-3, gamma=0.97, target_period=10, learning_rate=1e-3,
            dual_learning_rate=1e-2, regularizer_weight=0.01, popart_step_size=3e-3,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.unroll < 1 or self.updates < 1 or min(self.critic_hidden, default=0) < 1:
            raise ValueError(
                f"unroll, updates and every width of critic_hidden must be at least 1; got {self.unroll}, {self.updates}, "
                f"{self.critic_hidden}"
            )


class WalkingCritic(nn.Module):
    """Values from the true state, the command and the latent in force, scaled by fixed figures."""

    def __init__(self, size: int, config: VMPOTrainerConfig):
        super().__init__()
        self.scale = Normalizer(size)
        self.net = HighLevelCritic(size, config.critic_hidden, len(config.learner.objectives))

    @property
    def value_head(self) -> nn.Linear:
        """The layer that PopArt rescales."""
        return self.net.value_head

    def forward(self, observation: Tensor) -> Tensor:
        """(..., size) raw -> (..., K)."""
        return self.net(self.scale(observation))


class VMPOTrainer:
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    The policy that acts is the learner's target network, sampling; the decoder acts by its mean. An iteration is one
    unroll of all robots and the updates from it. Episodes go on across unrolls.
    """

    def __init__(
        self,
        env: WalkingEnv,
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

        Raises: InputError for a module of another robot, or objectives that are not the environment's.
        """
        self.env, self.config = env, config or VMPOTrainerConfig()
        skill.check_robot(env.robot)
        if self.config.learner.objectives != tuple(env.objectives):
            raise InputError(
                f"the task's objectives are {list(env.objectives)}, the algorithm's {list(self.config.learner.objectives)}"
            )
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        policy.to(env.device)
        torch.manual_seed(seed)  # the critic's initial weights
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.critic = WalkingCritic(true_state(env.state, env.home).shape[-1] + 3 + skill.latent_dim, self.config)
        self.critic.to(env.device)
        _fit_critic_scales(self.critic.scale, self.skill, policy)
        self.learner = VMPOLearner(policy, self.critic, self.config.learner, self._kl_to_prior)
        self.z = torch.zeros(env.num_envs, skill.latent_dim, device=env.device)
        self.memory = self.skill.initial_state(env.num_envs)
        self.thought = policy.initial_state(env.num_envs)
        self.first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
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
        return kl_to_prior(mean, std, rollout.observations.z_prev, self.skill.alpha)

    def _critic_input(self, state: RobotState, command: Tensor, z_prev: Tensor) -> Tensor:
        return torch.cat((true_state(state, self.env.home), command, z_prev), -1)

    # --- collection
    # ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots.

        Returns: the rollout; means over its steps: `reward`, `velocity_error`, `falls_per_s` (per robot).
        """
        env, steps = self.env, self.config.unroll
        start = self.thought
        rows: list[dict[str, object]] = []
        error, falls = 0.0, 0.0
        for _ in range(steps):
            seen = env.observe()
            given = PolicyInput(seen, env.command, self.z)
            critic_input = self._critic_input(env.state, env.command, self.z)
            z, log_prob, thought = self.learner.act(given, self.thought, self.first, generator=self.generator)
            action, memory = self.skill.decode(z, seen, self.memory)
            step = env.step(action)
            rows.append(
                {
                    "observations": given,
                    "actions": z,
                    "behaviour_log_prob": log_prob,
                    "resets": self.first,
                    "rewards": step.rewards,
                    "terminated": step.terminated,
                    "truncated": step.truncated,
                    # of the true successor: the environment is reset only below
                    "next_observations": self._critic_input(step.state, env.command, z),
                    "critic_observations": critic_input,
                }
            )
            error += step.error.nan_to_num(0.0).mean().item()
            falls += step.terminated.float().mean().item()
            done = step.terminated | step.truncated
            env.reset(done)
            self.z = z.masked_fill(done.unsqueeze(-1), 0.0)
            self.memory = memory.reset(done)
            self.thought = thought  # the learner resets it where `first` says so, in acting and in learning alike
            self.first = done
        self.env_steps += steps * env.num_envs
        stacked = stack_trees(rows)
        rollout = Rollout(**stacked, initial_state=start)
        return rollout, {
            "reward": stacked["rewards"].sum(-1).mean().item(),
            "velocity_error": error / steps,
            "falls_per_s": falls / steps / env.dt,
        }

    # --- learning
    # -----------------------------------------------------------------------------------------------------------

    def iteration(self, progress: float) -> dict[str, float]:
        """One unroll and its updates; progress (the share of the run done) changes nothing here. Returns metrics for
        the log."""
        del progress
        rollout, metrics = self.collect()
        learned = self.learner.learn(rollout, passes=self.config.updates)
        self.iteration_count += 1
        metrics |= {name.replace("/", "_"): value for name, value in learned.items()}
        metrics["kl"] = metrics.pop("loss_regularizer")  # to the latent prior [nats per step]
        return metrics

    # --- checkpoints
    # --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on: a resumed run equals an uninterrupted one."""
        return {
            **prefixed("learner", self.learner.state_dict()),
            **prefixed("env", self.env.state_dict()),
            "generator": self.generator.get_state(),
            "z": self.z,
            "decoder_hidden": self.memory.hidden,
            "decoder_cell": self.memory.cell,
            "policy_hidden": self.thought.hidden,
            "policy_cell": self.thought.cell,
            "first": self.first,
            "counts": torch.tensor([self.iteration_count, self.env_steps]),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken.

        Raises: InputError when it belongs to a run with other networks or numbers of robots.
        """
        with fitting():
            if state["z"].shape != self.z.shape:
                raise ValueError(f"latents of {tuple(state['z'].shape)} do not fit {tuple(self.z.shape)}")
            self.learner.load_state_dict(under("learner", state))
            self.env.load_state_dict(under("env", state))
            self.generator.set_state(state["generator"])
            names = ("z", "first", "decoder_hidden", "decoder_cell", "policy_hidden", "policy_cell")
            self.z, self.first, *memories = (state[name].to(self.z.device, copy=True) for name in names)
            self.memory, self.thought = DecoderState(*memories[:2]), HighLevelState(*memories[2:])
            self.iteration_count, self.env_steps = state["counts"].tolist()


def _fit_critic_scales(scale: Normalizer, skill: SkillModule, policy: HighLevelPolicy) -> None:
    """The module's own scales of the true state (the last part of its encoder's context), the policy's of the
    command."""
    width = len(scale.mean) - 3 - skill.latent_dim
    known = skill.context_scale
    scale.mean.copy_(
        torch.cat((known.mean[-width:], policy.command_scale.mean, known.mean.new_zeros(skill.latent_dim)))
    )
    scale.std.copy_(torch.cat((known.std[-width:], policy.command_scale.std, known.std.new_ones(skill.latent_dim))))
