"""One robot as a `dm_env.Environment`, for the tools of that ecosystem: dm_control's viewer, its
wrappers and recorders."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import dm_env
import mujoco
import numpy as np
import torch
from dm_control.mujoco import Physics
from dm_control.mujoco.wrapper import MjModel
from dm_env import specs
from torch import Tensor

from mocap_data.errors import InputError
from npmp.envs.features import proprioception, proprioception_layout
from npmp.envs.task_env import TaskEnv
from npmp.sim import BatchSim, flat_scene


class DmControlAdapter(dm_env.Environment):
    """An environment of one robot behind dm_env's interface.

    Observations are the parts of the robot's proprioception by name, and the task's: `context` (the
    encoder's features) in imitation, `command` in walking. Actions are joint targets minus the home
    pose [rad], without bounds. A failure ends an episode with discount 0, the end of the clip or of
    the time with discount 1.

    `physics` mirrors the simulation for `dm_control.viewer.launch(adapter, policy)` and for
    `physics.render`: its positions and velocities are the simulation's, its model has the robot's
    looks as well. It is not stepped itself; forces that a viewer's user applies to its bodies
    (`xfrc_applied`) act on the simulation.
    """

    def __init__(self, env: TaskEnv[Any]):
        """Wrap an environment made with num_envs=1; the adapter owns it from then on.

        Raises:
          InputError: when it simulates more than one robot, or not with sim="batch" on the CPU.
        """
        if env.num_envs != 1:
            raise InputError(
                f"dm_env knows single environments: expected num_envs=1, got {env.num_envs}"
            )
        if not isinstance(env.sim, BatchSim):
            raise InputError(
                'dm_env\'s physics mirrors MuJoCo\'s on the CPU: expected sim="batch", device="cpu"'
            )
        self._env = env
        self._layout = proprioception_layout(env.num_actions)
        self._time = env.sim.batch.bind("time")
        self._forces = env.sim.batch.bind("xfrc_applied")
        self._physics = Physics.from_model(
            MjModel(flat_scene(env.robot, env.task.add_to_scene, visuals=True))
        )
        self._over = True  # dm_env: the first step of a fresh environment is a reset
        self._mirror()

    @property
    def physics(self) -> Physics:
        """A dm_control physics of the same robot, in the simulation's state after every `reset` and
        `step`."""
        return self._physics

    def control_timestep(self) -> float:
        """Simulated time of one step [s]."""
        return self._env.dt

    def action_spec(self) -> specs.BoundedArray:
        """Joint targets minus home pose (nu,) [rad]."""
        shape = (self._env.num_actions,)
        return specs.BoundedArray(
            shape, np.float32, -np.inf, np.inf, name="\t".join(self._env.robot.joint_names)
        )

    def observation_spec(self) -> OrderedDict[str, specs.Array]:
        """Names and shapes of the observations, all float32."""
        return OrderedDict(
            (name, specs.Array(value.shape, value.dtype, name))
            for name, value in self._observation().items()
        )

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        self._env.reset()
        self._over = False
        self._physics.data.xfrc_applied[:] = 0.0
        self._mirror()
        return dm_env.restart(self._observation())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """One control step; after the end of an episode a reset, whatever the action.

        Raises:
          ValueError: for an action of another shape.
        """
        if self._over:
            return self.reset()
        # a copy: the viewer's default action is read-only
        action = np.array(action, dtype=np.float32)
        if action.shape != (self._env.num_actions,):
            raise ValueError(
                f"expected an action of shape ({self._env.num_actions},), got {action.shape}"
            )
        self._forces[0] = self._physics.data.xfrc_applied
        with torch.no_grad():
            result = self._env.step(torch.from_numpy(action).unsqueeze(0))
        self._mirror()
        observation, reward = self._observation(), float(result.rewards.sum())
        failed, ended = bool(result.terminated), bool(result.truncated)
        self._over = failed or ended
        if failed:
            return dm_env.termination(reward, observation)
        if ended:
            return dm_env.truncation(reward, observation, discount=1.0)
        return dm_env.transition(reward, observation)

    def _observation(self) -> OrderedDict[str, np.ndarray]:
        env = self._env
        parts = proprioception(env.state, env.home)[0].split([width for _, width in self._layout])
        observation = OrderedDict(
            (name, _array(part)) for (name, _), part in zip(self._layout, parts, strict=True)
        )
        observation[env.task.observation_name] = _array(env.task.observe()[0])
        return observation

    def _mirror(self) -> None:
        """Bring `physics` to the simulation's state."""
        data = self._physics.data
        data.qpos[:], data.qvel[:] = self._env.sim.qpos[0].numpy(), self._env.sim.qvel[0].numpy()
        data.ctrl[:] = self._env.state.setpoint[0].numpy()
        data.time = float(self._time[0])
        mujoco.mj_forward(self._physics.model.ptr, data.ptr)


def _array(values: Tensor) -> np.ndarray:
    """A copy that no later step changes."""
    return values.numpy(force=True).copy()
