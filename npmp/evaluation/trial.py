"""A trial of a policy at a task, with the same commands and starts for every policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mocap_data.input_files import require_memory
from npmp.core import geometry
from npmp.envs.policy import Policy
from npmp.envs.rollout import Transition, at_end_but_time, rollout
from npmp.envs.task import Trial
from npmp.envs.task_env import TaskEnv
from npmp.tasks.velocity import heading_velocity


def run_trial(
    policy: Policy,
    env: TaskEnv[Any],
    *,
    seconds: float = 20.0,
    seed: int = 0,
    commands: Tensor | None = None,
) -> Trial:
    """Run all robots for a time; `env.task.figures` computes the metrics of the trial.

    A robot that falls is reset and continues with the schedule of commands (`Task.schedule`). All
    steps of all robots count, so a fall costs the time until the robot walks again, and is reported
    as falls per minute. Episodes have no time limit.

    Args:
      env: reset first; its generator is reseeded.
      seed: of commands and starts, equal for all policies.
      commands: (T, n, c) instead of the schedule, the last one repeated (`Commands.fix`).
    """
    steps = max(1, round(seconds / env.dt))
    row = 4 * (2 * env.num_actions + 32)  # recorded bytes per robot and step
    require_memory(
        2.0 * steps * env.num_envs * row, f"a trial of {env.num_envs:,} robots over {seconds:g} s"
    )
    try:
        env.schedule(steps, torch.Generator(env.device).manual_seed(seed))
        if commands is not None:
            env.task.commands.fix(commands)
        env.generator.manual_seed(seed + 1)
        env.reset()
        recorder = _TrialRecorder(env)
        rollout(policy, env, steps, recorder, resets=at_end_but_time)
    finally:
        env.schedule(0, None)
    return recorder.trial()


def part_of(trial: Trial, steps: Any, robots: Any) -> Trial:
    """Control steps and robots of a trial, by slices or tensors; `qpos` stays whole."""
    metrics = {name: values[steps, robots] for name, values in trial.metrics.items()}
    return trial._replace(
        metrics=metrics, error=trial.error[steps, robots], fell=trial.fell[steps, robots]
    )


def effort(trial: Trial) -> dict[str, float]:
    """Effort of the drives over all steps of a trial.

    Returns: `mechanical_power_w`, the joints' positive power (braking recovers none);
    `energy_j_per_m`, per metre of the base's path; `torque_rms_nm` of all joints;
    `torque_rate_nm_s`, the mean change of a joint's torque, and `joint_jerk_rad_s3`, the RMS of the
    second difference of its velocity, between control steps of one episode; `torque_max_nm` and
    `joint_speed_max_rps`, the largest of any joint at the end of a control step.
    """
    torque, speed, base = (trial.metrics[name] for name in ("torque", "joint_vel", "base"))
    power = (torque * speed).clamp(min=0.0).sum(-1)  # (T, n)
    mean_speed = base[..., 3].mean().item()
    figures = {
        "mechanical_power_w": power.mean().item(),
        "energy_j_per_m": power.mean().item() / max(mean_speed, 1e-3),
        "torque_rms_nm": torque.square().mean().sqrt().item(),
        "torque_max_nm": torque.abs().max().item(),
        "joint_speed_max_rps": speed.abs().max().item(),
    }
    is_first = trial.metrics["is_first"]
    # steps whose two predecessors belong to the same episode
    within = ~(is_first[1:-1] | is_first[2:])
    if within.any():
        change = (torque[2:] - torque[1:-1])[within].abs().mean().item()
        second = (speed[2:] - 2.0 * speed[1:-1] + speed[:-2])[within]
        figures["torque_rate_nm_s"] = change / trial.dt
        figures["joint_jerk_rad_s3"] = second.square().mean().sqrt().item() / trial.dt**2
    return figures


class _TrialRecorder:
    def __init__(self, env: TaskEnv[Any]):
        self.env = env
        self.robots = torch.arange(env.num_envs, device=env.device)
        self.soles = self._soles()
        self.metrics: dict[str, list[Tensor]] = {}
        self.errors: list[Tensor] = []
        self.fell: list[Tensor] = []
        self.qpos = [self._qpos()]

    def _qpos(self) -> Tensor:
        """Positions of robot 0, without the jumps that keep it on the terrain
        (`Ground.integrated`)."""
        env = self.env
        qpos = self.env.robots.qpos[0].clone()
        qpos[:2] -= (env.state.root_pos - env.ground.integrated(env.state).root_pos)[0, :2]
        return qpos

    def _soles(self) -> Tensor:
        """Each foot's horizontal position and clearance above the ground, (n, F, 3) [m]."""
        env = self.env
        feet = self.env.feet
        state = env.ground.integrated(env.state)
        points = feet(state.root_pos, state.root_rot, state.joint_pos)
        height = points[..., 2] - feet.radius - env.ground.height_at(points[..., :2], self.robots)
        soles = torch.cat((points[..., :2].mean(-2), height.amin(-1, keepdim=True)), -1)
        return soles.nan_to_num(0.0)

    def __call__(self, transition: Transition) -> None:
        state = self.env.state
        step = transition.step
        own = {"is_first": transition.observation.is_first, "joint_vel": state.joint_vel_end}
        own["torque"] = self.env.robots.torque.nan_to_num(0.0)
        before = self.soles
        self.soles = self._soles()
        speed = torch.linalg.vector_norm((self.soles - before)[..., :2], dim=-1) / self.env.dt
        own["feet"] = torch.stack((self.soles[..., 2], speed), -1)
        yaw = geometry.yaw_of(state.root_rot).unsqueeze(-1)
        place = self.env.ground.integrated(state).root_pos[:, :2]
        own["pose"] = torch.cat((place, yaw), -1).nan_to_num(0.0)
        own["velocity"] = heading_velocity(state).nan_to_num(0.0)
        own["base"] = base_motion(
            state.root_rot, self.env.ground.local(state).root_pos, state.root_vel
        )
        for name, value in {**step.metrics, **own}.items():
            self.metrics.setdefault(name, []).append(value.clone())
        self.errors.append(step.error.nan_to_num(0.0))
        self.fell.append(step.terminated)
        self.qpos.append(self._qpos())

    def trial(self) -> Trial:
        """The recording, on the CPU."""
        metrics = {name: torch.stack(rows).cpu() for name, rows in self.metrics.items()}
        errors = torch.stack(self.errors).cpu()
        fell = torch.stack(self.fell).cpu()
        return Trial(metrics, errors, fell, torch.stack(self.qpos).double().cpu(), self.env.dt)


def base_motion(rotation: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
    """Roll and pitch [rad, nose down positive], height [m] and horizontal speed [m/s], (..., 4).

    rotation: (..., 3, 3) to the world; position: (..., 3) above the ground; velocity: (..., 3) in
    the root frame.
    """
    up = rotation[..., 2, :]
    world_velocity = geometry.to_world(rotation, velocity)
    roll = torch.atan2(up[..., 1], up[..., 2])
    pitch = -torch.asin(up[..., 0].clamp(-1.0, 1.0))
    speed = torch.linalg.vector_norm(world_velocity[..., :2], dim=-1)
    return torch.stack((roll, pitch, position[..., 2], speed), -1)
