"""On-policy learning by V-MPO, MO-V-MPO or PPO, for any task.

An iteration is one unroll of all robots and the updates from it. In imitation encoder and decoder
are trained, actions are joint targets (Bohez et al. 2022). In reuse a high-level policy is trained,
actions are latents of a frozen decoder.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.core.seeding import seeded
from npmp.core.state import Counters, StatePart
from npmp.core.tree import stack_trees
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.rollout import RolloutState, Transition, rollout
from npmp.envs.task_env import TaskEnv
from npmp.learning.agents import Agent, ModuleAgent, latent_range
from npmp.learning.critic import Critic
from npmp.learning.rl import PPO, VMPO, Learner, PPOConfig, Rollout, VMPOConfig
from npmp.learning.schedules import prior_weight
from npmp.learning.trainer import Experience, StepMeans, Trainer
from npmp.skills.composition import CompositionState


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings of every on-policy algorithm. Raises ValueError out of range."""

    # control steps per robot and iteration
    unroll: int = 32
    # passes over an unroll; 1 in V-MPO
    passes: int = 2
    # groups of robots per pass, one gradient step each; 1 in V-MPO
    minibatches: int = 4
    # units of the critic's layers; 1024 each in the paper
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    # final weight of the KL to the prior, summed over latent dimensions [1/nat]
    beta: float = 0.03
    # share of the run over which beta rises; 0: constant
    beta_ramp: float = 0.5

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "passes", "minibatches", "critic_hidden")
        ranges.at_most(self, ranges.MAX_WIDTH, "critic_hidden")
        ranges.not_negative(self, "beta", "beta_ramp")
        super().__post_init__()  # type: ignore[misc]  # of the loss

    @abstractmethod
    def learner(self, agent: Agent, env: TaskEnv[Any], critic_width: int) -> Learner:
        """The learner of an agent; critic_width: of the critic's observation."""


@dataclass(frozen=True, kw_only=True)
class VMPOTraining(OnPolicyConfig, VMPOConfig):
    """V-MPO; with a task of several objectives MO-V-MPO."""

    def learner(self, agent: Agent, env: TaskEnv[Any], critic_width: int) -> VMPO:
        critic = Critic(critic_width, self.critic_hidden, len(env.task.objectives)).to(env.device)
        return VMPO(agent.network, critic, self, env.task.objectives)


@dataclass(frozen=True, kw_only=True)
class PPOTraining(OnPolicyConfig, PPOConfig):
    """PPO, with the sum of a task's objectives."""

    unroll: int = 24
    passes: int = 3
    minibatches: int = 2
    # for advantages of standard deviation 1
    beta: float = 0.01

    def learner(self, agent: Agent, env: TaskEnv[Any], critic_width: int) -> PPO:
        return PPO(agent.network, Critic(critic_width, self.critic_hidden, 1).to(env.device), self)


class OnPolicyTrainer(Trainer):
    """Environment, learner and the state of collection. Episodes continue across unrolls."""

    needs_all_collectors = False
    learning_rate_keys = "algo.learning_rate="

    def __init__(self, env: TaskEnv[Any], agent: Agent, config: OnPolicyConfig, *, seed: int = 0):
        """agent: trained in place, on the environment's device.

        Raises:
          InputError: for more minibatches than robots.
        """
        if config.minibatches > env.num_envs:
            raise InputError(
                f"algo.minibatches={config.minibatches}: must be at most num_envs={env.num_envs}"
            )
        self.env = env
        self.agent = agent
        self.config = config
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.initial_state = agent.initial_state
        state = self.initial_state(env.num_envs)
        with seeded(seed):
            self.learner = config.learner(agent, env, self._critic_observations(state).shape[-1])
        self.acting_net = self.learner.acting
        is_first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = RolloutState(state, is_first)
        self.range = torch.full_like(state.z[0], 0.1)  # range of recent latents
        self.iteration_count = self.env_steps = 0

    def step(
        self, observation: Observation, state: CompositionState
    ) -> tuple[PolicyOutput, CompositionState]:
        """As `Policy.step`, sampling from the acting network."""
        agent = self.agent
        inputs = agent.observe(observation, state, self.generator)
        critic_observations = self._critic_observations(state)
        output, log_prob, network_state = self.learner.act(
            inputs, agent.network_state(state), observation.is_first, self.generator
        )
        action, after = agent.drive(output, observation, state, network_state)
        info = {"observations": inputs, "actions": output, "behaviour_log_prob": log_prob}
        return PolicyOutput(action, info | {"critic_observations": critic_observations}), after

    def _critic_observations(self, state: CompositionState) -> Tensor:
        """The critic's current observation (n, p): privileged, and the previous latent."""
        return torch.cat((self.env.task.privileged(), state.z), -1)

    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots: the rollout, and means over its steps."""
        start = self.carried
        rows = []
        means = StepMeans(self.env)

        def record(transition: Transition) -> None:
            step = transition.step
            row = {"resets": transition.observation.is_first}
            row |= {"rewards": step.rewards.nan_to_num()}
            row |= {"terminated": step.terminated, "truncated": step.truncated}
            # before the reset, so this is the true next state
            row["next_observations"] = self._critic_observations(transition.next_state)
            rows.append(transition.output.info | row)
            means.add(step)

        self.carried = rollout(self, self.env, self.config.unroll, record, carried=start)
        return Rollout(
            **stack_trees(rows), initial_state=self.agent.network_state(start.policy)
        ), means.metrics()

    def collect_experience(self, progress: float) -> Experience:
        """As `Trainer.collect_experience`: a rollout."""
        collected, figures = self.collect()
        return Experience(collected, figures, collected.num_steps)

    def merge_data(self, data: list[Rollout]) -> Rollout:
        return Rollout.concatenate(data)

    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        """As `Trainer.iteration`: one unroll and the updates from it."""
        experience = experience or self.collect_experience(progress)
        c = self.config
        self.env_steps += experience.env_steps
        collected: Rollout = experience.data
        if self.iteration_count == 0:  # fit the critic's input scales to the first unroll
            self.learner.critic.scale.fit(collected.critic_observations.flatten(0, 1), 0.1)
        self.range.copy_(latent_range(collected.critic_observations[..., -len(self.range) :]))
        beta = prior_weight(progress, c.beta, c.beta_ramp)
        learned = self.learner.learn(
            collected, beta, passes=c.passes, minibatches=c.minibatches, generator=self.generator
        )
        self.iteration_count += 1
        if isinstance(self.agent, ModuleAgent):
            learned["action_std"] = self.agent.network.log_std.exp().mean().item()
        return experience.metrics | learned | {"beta": beta}

    def _parts(self) -> dict[str, StatePart]:
        return {
            "learner": self.learner,
            "env": self.env,
            "carried": self.carried,
            "generator": self.generator,
            "range": self.range,
            **self.agent.parts,
            "counts": Counters(self, "iteration_count", "env_steps"),
        }
