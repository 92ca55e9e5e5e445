"""The environment of every task: robots, episodes, resets, checkpoints."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar

import mujoco
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.checkpoint import prefixed, under
from npmp.envs.feet import Feet
from npmp.envs.ground import make_ground
from npmp.envs.robot_batch import RobotBatch, RobotBatchConfig
from npmp.envs.state import RobotState
from npmp.envs.task import EnvStep, Task
from npmp.envs.threads import serial_if_small
from npmp.sim import flat_scene

T = TypeVar("T", bound=Task)


class TaskEnv(Generic[T]):
    """A vectorized environment: n robots at one task.

    Actions are joint position targets relative to the home pose [rad], unfiltered and unclipped;
    setpoint = home + action. The caller resets finished robots: `step`, then `reset(done)`. After a
    step, `state` and the task's observation are those of the next action.

    On the CPU the same seed gives the same bits.
    """

    def __init__(
        self,
        task: T,
        num_envs: int,
        *,
        robots: RobotBatchConfig | None = None,
        seed: int = 0,
        num_threads: int = 0,
        device: torch.device | str = "cpu",
        engine: str = "",
        episode_s: float | None = None,
    ):
        """Build and reset the simulations. Episodes that end by time begin at random ages, so that
        they do not end together.

        Args:
          robots: drives, sensors, physics and pushes; by default ideal robots with the task's hold.
          num_threads: of the physics; 0: all cores. Results do not depend on it.
          device: of all tensors, arguments included.
          engine: of the physics, as `npmp.sim.simulate`.
          episode_s: upper limit on the duration of the task's episodes [s]; None: none.

        Raises:
          InputError: for less than one robot, or by the task or the simulator.
        """
        if num_envs < 1:
            raise InputError(f"num_envs must be at least 1, got {num_envs}")
        if num_threads < 0:
            raise InputError(f"num_threads must be at least 0, got {num_threads}")
        self.task = task
        self.robot = task.robot
        self.ground = make_ground(task.parts.ground)
        self._device_options: dict[str, Any] = {
            "num_threads": num_threads,
            "device": device,
            "engine": engine,
        }
        config = robots or RobotBatchConfig()
        if robots is None and hasattr(task.config, "hold"):
            config = config.like(task.config)
        self.robots = batch = RobotBatch(
            task.robot, self._scene(), num_envs, config, **self._device_options
        )
        self.num_envs = num_envs
        self.num_threads = num_threads
        self.device = batch.device
        self.home = batch.home  # joint angles of the home pose (nu,) [rad]
        self.dt = batch.dt  # control period [s]
        self.num_actions = len(self.home)  # joints driven
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # control steps since the episode's start
        self.age = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        times = [time for time in (task.episode_s, episode_s) if time is not None]
        self._episode_steps = max(1, round(min(times) / self.dt)) if times else None
        self.ground.bind(self)
        task.bind(self)
        self.restart()

    def _scene(self) -> mujoco.MjModel:
        def add(spec: mujoco.MjSpec) -> None:
            self.ground.add_to_scene(spec)
            self.task.add_to_scene(spec)

        return flat_scene(self.robot, add)

    def for_task(self, task: Task, *, seed: int) -> TaskEnv[Any]:
        """An environment of another task with the same robots, device and engine."""
        return TaskEnv(
            task, self.num_envs, robots=self.robots.config, seed=seed, **self._device_options
        )

    @cached_property
    def feet(self) -> Feet:
        """Foot positions as a function of the pose."""
        return Feet(self.robot).to(self.device)

    @property
    def state(self) -> RobotState:
        """The exact state of all robots."""
        return self.robots.state

    def observe(self) -> Tensor:
        """Sensor readings (n, o) as `npmp.envs.features.proprioception`; each call samples noise
        and delay."""
        return self.robots.observe(self.generator)

    def fallen(self, state: RobotState) -> Tensor:
        """Robots that lie or lean by more than 60 degrees, (n,) bool."""
        low = self.ground.local(state).root_pos[..., 2] < 0.5 * float(self.robot.home_qpos[2])
        return low | (state.root_rot[..., 2, 2] < 0.5)

    @serial_if_small
    def reset(self, mask: Tensor | None = None, **where: Tensor) -> RobotState:
        """Start new episodes.

        Args:
          mask: robots to reset (n,) bool; None: all.
          where: start parameters (k, ...) of the k robots of the mask, by the task's names; others
            are random.

        Returns: the state of all robots.
        """
        chosen = torch.ones_like(self.age) if mask is None else mask
        ids = torch.nonzero(chosen).squeeze(-1)
        if len(ids) == 0:
            return self.state
        self.robots.reset(ids, self.task.start(ids, self.generator, **where), self.generator)
        self.ground.move_to_field(ids, self.generator)
        self.task.begin(ids, self.generator)
        self.age = self.age.index_fill(0, ids, 0)
        return self.state

    def restart(self) -> RobotState:
        """Reset all robots, with random ages of the episodes, so that they do not end together.

        Returns: the state of all robots.
        """
        self.reset()
        if self._episode_steps is not None:
            n = (self.num_envs,)
            most = self._episode_steps
            self.age = torch.randint(most, n, generator=self.generator, device=self.device)
        return self.state

    @serial_if_small
    def step(self, action: Tensor) -> EnvStep:
        """One control step. action (n, nu): joint targets minus home pose [rad]."""
        self.robots.step(action, self.generator)
        self.robots.record_breakdowns(lambda i: self.task.describe(i) | self.ground.describe(i))
        result = self.task.evaluate_step()
        self.age = self.age + 1
        truncated = result.ended
        failed = result.failed
        if self._episode_steps is not None:
            truncated = truncated | (self.age >= self._episode_steps)
        self.ground.advance(failed, result.metrics)
        self.task.advance(result, self.generator)
        return EnvStep(
            self.state,
            result.rewards,
            failed,
            truncated & ~failed,
            result.error,
            result.ended & ~failed,
            result.metrics,
        )

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """Prepare a trial of `steps` control steps, the same for every policy (`Task.schedule`),
        with robots spread over the terrain. generator: None: back to training."""
        self.ground.spread = generator is not None
        self.task.schedule(steps, generator)

    def state_dict(self) -> dict[str, Tensor]:
        """The full state, for checkpoints."""
        return {
            **prefixed("robots", self.robots.state_dict()),
            **prefixed("ground", self.ground.state_dict()),
            **prefixed("task", self.task.state_dict()),
            "age": self.age,
            "rng": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a `state_dict`, to the bit.

        Raises:
          ValueError: for the state of another task or another number of robots.
        """
        if state["age"].shape != self.age.shape:
            raise ValueError(f"the state has {len(state['age'])} robots, expected {self.num_envs}")
        # robots first: tasks may write to the physics
        self.robots.load_state_dict(under("robots", state))
        self.ground.load_state_dict(under("ground", state))
        self.task.load_state_dict(under("task", state))
        self.age = state["age"].to(self.device, copy=True)
        self.generator.set_state(state["rng"])
