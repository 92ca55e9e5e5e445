"""Learning on policy, by V-MPO, MO-V-MPO or PPO: one trainer for any task.

An iteration is one unroll of all robots, and updates from it. In imitation a whole module learns,
encoder and decoder, and its actions are joint targets (Bohez et al. 2022); in reuse a high-level
policy, whose actions are latents of a frozen decoder.
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
from npmp.core.state import Numbers, Part
from npmp.core.tree import stack_trees
from npmp.envs.rollout import PolicyOutput, RolloutState, Transition, rollout
from npmp.envs.task_env import TaskEnv
from npmp.learning.agents import Agent, AgentMemory, ModulePolicy, latent_range
from npmp.learning.critic import Critic
from npmp.learning.rl import PPO, VMPO, Learner, PPOConfig, Rollout, VMPOConfig
from npmp.learning.schedules import prior_weight
from npmp.learning.trainer import Experience, StepMeans, Trainer


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
    # weight of the KL to the prior at the end of its course, summed over latent dimensions [1/nat]
    beta: float = 0.03
    # share of the run over which beta rises; 0: it is constant
    beta_ramp: float = 0.5

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "passes", "minibatches", "critic_hidden")
        ranges.at_most(self, ranges.MAX_WIDTH, "critic_hidden")
        ranges.not_negative(self, "beta", "beta_ramp")
        super().__post_init__()  # type: ignore[misc]  # of the loss

    @abstractmethod
    def learner(self, agent: Agent, env: TaskEnv[Any], known: int) -> Learner:
        """The learner of an agent; known: width of what the critic sees."""


@dataclass(frozen=True, kw_only=True)
class VMPOTraining(OnPolicyConfig, VMPOConfig):
    """V-MPO; with a task of several objectives MO-V-MPO."""

    def learner(self, agent: Agent, env: TaskEnv[Any], known: int) -> VMPO:
        critic = Critic(known, self.critic_hidden, len(env.task.objectives)).to(env.device)
        return VMPO(agent.network, critic, self, env.task.objectives)


@dataclass(frozen=True, kw_only=True)
class PPOTraining(OnPolicyConfig, PPOConfig):
    """PPO, with the sum of a task's objectives."""

    unroll: int = 24
    passes: int = 3
    minibatches: int = 2
    # beside advantages of standard deviation 1
    beta: float = 0.01

    def learner(self, agent: Agent, env: TaskEnv[Any], known: int) -> PPO:
        return PPO(agent.network, Critic(known, self.critic_hidden, 1).to(env.device), self)


class OnPolicyTrainer(Trainer):
    """Owns environment, learner and the collection's state. Episodes go on across unrolls."""

    needs_all_collectors = False
    learning_rate_keys = "algo.learning_rate="

    def __init__(self, env: TaskEnv[Any], agent: Agent, config: OnPolicyConfig, *, seed: int = 0):
        """agent: trained in place, on the environment's device.

        Raises:
          InputError: for more minibatches than robots.
        """
        if config.minibatches > env.num_envs:
            raise InputError(
                f"algo.minibatches={config.minibatches} needs as many robots, there are "
                f"{env.num_envs} (num_envs)"
            )
        self.env = env
        self.agent = agent
        self.config = config
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        memory = agent.initial_memory(env.num_envs)
        with seeded(seed):
            self.learner = config.learner(agent, env, self._known(memory).shape[-1])
        self.acting_net = self.learner.acting
        self.initial_memory = agent.initial_memory
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = RolloutState(memory, first)
        self.range = torch.full_like(memory.z[0], 0.1)  # of the latents lately seen
        self.iteration_count = self.env_steps = 0

    def act(self, env: TaskEnv[Any], memory: AgentMemory, first: Tensor) -> PolicyOutput:
        """As `npmp.envs.rollout.Actor.act`: the acting network samples."""
        observations = self.agent.observe(env, memory, self.generator)
        critic_observations = self._known(memory)
        output, log_prob, state = self.learner.act(
            observations, memory.network, first, self.generator
        )
        action, after = self.agent.drive(output, observations, memory, state)
        note = {"observations": observations, "actions": output, "behaviour_log_prob": log_prob}
        return PolicyOutput(action, after, note | {"critic_observations": critic_observations})

    def _known(self, memory: AgentMemory) -> Tensor:
        """What the critic sees of the present state: all that there is to know, (n, p)."""
        return torch.cat((self.env.task.privileged(), memory.z), -1)

    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """One unroll of all robots: the rollout, and means over its steps."""
        start = self.carried
        rows = []
        means = StepMeans(self.env)

        def record(moment: Transition) -> None:
            step = moment.step
            row = {"resets": moment.first, "rewards": step.rewards.nan_to_num()}
            row |= {"terminated": step.terminated, "truncated": step.truncated}
            # the environment has not been reset: this is the true successor
            row["next_observations"] = self._known(moment.decision.memory)
            rows.append(moment.decision.note | row)
            means.add(step)

        self.carried = rollout(self, self.env, self.config.unroll, record, carried=start)
        return Rollout(**stack_trees(rows), initial_state=start.memory.network), means.metrics()

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
        if self.iteration_count == 0:  # the critic's input scales are those of the first unroll
            self.learner.critic.scale.fit(collected.critic_observations.flatten(0, 1), 0.1)
        self.range.copy_(latent_range(collected.critic_observations[..., -len(self.range) :]))
        beta = prior_weight(progress, c.beta, c.beta_ramp)
        how: Any = {"passes": c.passes, "minibatches": c.minibatches, "generator": self.generator}
        learned = self.learner.learn(collected, beta, **how)
        self.iteration_count += 1
        if isinstance(network := self.agent.network, ModulePolicy):
            learned["action_std"] = network.log_std.exp().mean().item()
        return experience.metrics | learned | {"beta": beta}

    def _parts(self) -> dict[str, Part]:
        return {
            "learner": self.learner,
            "env": self.env,
            "carried": self.carried,
            "generator": self.generator,
            "range": self.range,
            **self.agent.parts,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }
