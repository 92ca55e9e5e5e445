"""MO-V-MPO for imitation, as robot-NPMP trained its skill modules, at the scale of one machine."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.checkpoint import prefixed, under
from npmp.envs.features import ReferenceFeatures, encoder_context, proprioception
from npmp.envs.imitation import ImitationEnv
from npmp.envs.rewards import REWARD_TERMS
from npmp.envs.state import RobotState
from npmp.imitation.policy import (
    CriticInput,
    ImitationCritic,
    ImitationPolicy,
    ImitationPolicyInput,
    ImitationPolicyState,
)
from npmp.nets import NetConfig
from npmp.rl import Rollout, VMPOConfig, VMPOLearner
from npmp.rl.tree import stack_trees
from npmp.skill import SkillContract, SkillModule


@dataclass(frozen=True)
class MOVMPOConfig:
    """Settings of MO-V-MPO in imitation; sources with the values in conf/algo/mo_vmpo.yaml. Raises ValueError out of range."""

    unroll: int = 32  # control steps per robot and iteration
    updates: int = 1  # gradient steps per unroll
    initial_std: float = 0.2  # of the setpoints [rad]
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    beta: float = 0.3  # weight of the KL to the prior at the end of its course, per nat summed over latent dimensions
    beta_power: float = 0.2  # beta (1 - (1 - min(1, k / K))^power)
    beta_ramp: float = 0.5  # K, as a share of the run
    learner: VMPOConfig = field(default_factory=lambda: VMPOConfig(objectives=REWARD_TERMS))

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "updates", "critic_hidden")
        ranges.above_zero(self, "initial_std", "beta_power", "beta_ramp")
        ranges.not_negative(self, "beta")

    def beta_at(self, progress: float) -> float:
        """The weight of the KL when a share of the run is done (robot-NPMP): slow at first, steep at the end of the ramp."""
        return self.beta * (1.0 - (1.0 - min(1.0, progress / self.beta_ramp)) ** self.beta_power)


class MOVMPOTrainer:
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    The policy that acts is the learner's target network, sampling latents and setpoints. An iteration is one unroll of all robots
    and the updates from it. Episodes go on across unrolls. Each term of the reward is an objective of its own; their sum is only
    reported.
    """

    def __init__(self, env: ImitationEnv, net: NetConfig, config: MOVMPOConfig, *, seed: int = 0, horizon: int = 5):
        """Build everything on the CPU.

        Args:
          env: the robots to collect with.
          horizon: reference frames that the encoder looks ahead.

        Raises: InputError for objectives that are not the environment's.
        """
        self.env, self.config = env, config
        if config.learner.objectives != tuple(env.objectives):
            raise InputError(
                f"the task's objectives are {list(env.objectives)}, the algorithm's {list(config.learner.objectives)}"
            )
        torch.manual_seed(seed)  # the networks' initial weights
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.features = ReferenceFeatures(env.robot, env.reference, horizon)
        frames = torch.arange(env.reference.num_frames)
        clip = torch.bucketize(frames, env.reference.start, right=True) - 1
        context = self._context(env.reference.state(frames), frames, env.reference.last_frame(clip))
        contract = SkillContract.for_robot(env.robot, net, context_size=context.shape[-1], context_horizon=horizon)
        skill = SkillModule(contract)
        # scales from the reference itself: fixed from the start, so that no feature drifts under the networks
        skill.context_scale.fit(context, 0.1)
        skill.observation_scale.fit(proprioception(env.reference.state(frames), env.home), 0.1)
        policy = ImitationPolicy(skill, initial_std=config.initial_std)
        critic = ImitationCritic(
            skill.context_scale, net.latent_dim, len(env.reference.names), env.plant.physics_size,
            config.critic_hidden, len(env.objectives),
        )  # fmt: skip
        self.learner = VMPOLearner(policy, critic, config.learner)
        self.carried = policy.initial_state(env.num_envs)
        self.first = torch.ones(env.num_envs, dtype=torch.bool)
        self.range = torch.full((net.latent_dim,), 0.1)  # of the latents lately seen
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
        skill = copy.deepcopy(self.policy.skill)
        skill.latent_range.copy_(self.range)
        return skill

    def _context(self, state: RobotState, frame: Tensor, last: Tensor) -> Tensor:
        return encoder_context(self.features, state, frame, last, self.env.home)

    def _critic_input(self, z: Tensor) -> CriticInput:
        env = self.env
        return CriticInput(self._context(env.state, env.frame, env.last_frame), z, env.clip.clone(), env.plant.physics.clone())

    # --- collection ---------------------------------------------------------------------------------------------------------

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
            noise = torch.randn(known.z.shape, generator=self.generator)
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
        for _ in range(self.config.updates):
            learned = self.learner.update(rollout)
        self.iteration_count += 1
        metrics |= {name.replace("/", "_"): value for name, value in learned.items()}
        metrics["kl"] = metrics.pop("loss_regularizer")  # to the latent prior [nats per step]
        return metrics | {"beta": self.learner.regularizer_weight, "action_std": self.policy.log_std.exp().mean().item()}

    # --- checkpoints --------------------------------------------------------------------------------------------------------

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
        try:
            if state["first"].shape != self.first.shape:
                raise ValueError(f"{len(state['first'])} robots do not fit {len(self.first)}")
            self.learner.load_state_dict(under("learner", state))
            self.env.load_state_dict(under("env", state))
            self.carried = ImitationPolicyState(**{k: v.clone() for k, v in under("carried", state).items()})
            self.generator.set_state(state["generator"])
            self.first, self.range = state["first"].clone(), state["range"].clone()
            self.iteration_count, self.env_steps = state["counts"].tolist()
        except (RuntimeError, KeyError, ValueError) as error:
            raise InputError(f"the checkpoint is of another kind of run: {str(error).splitlines()[0]}") from error
