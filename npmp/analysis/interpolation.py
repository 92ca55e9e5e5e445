"""What lies between two clips: their latents, mixed, through the frozen decoder.

Each clip is tracked in simulation with mean latents, which gives its sequence z_a[t], z_b[t]. A
robot of weight w is then commanded z = (1 - w) z_a + w z_b, open loop, without the encoder.

What is mixed must belong together. A latent says what to do now, so two gaits mixed by frame are
out of step as soon as their strides differ. By strides, each clip's frames carry a stride phase,
counted from touch-downs of one foot; mixed are frames of equal phase, and the phase advances at (1
- w) of clip a's rate plus w of b's. At w = 0 and w = 1 that is the clip's own sequence, frame by
frame. Latents between two frames are interpolated linearly: at rates close to each other this
hardly touches the AR(1) correlation.

Mixing shrinks latents where the clips' differ: independent ones to half their variance at w = 0.5.
mix="linear" leaves it at that; mix="variance" divides by sqrt((1 - w)^2 + w^2), which keeps the
variance of independent latents and exaggerates what both clips share.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import robots
from npmp.actors import LatentActor
from npmp.analysis.description import Module, open_module
from npmp.envs import RobotBatchConfig, TaskEnv, load_motions
from npmp.robots import Robot
from npmp.rollout import Moment, rollout
from npmp.skill import SkillModule
from npmp.tasks.imitation import Imitation, ImitationEnv
from npmp.tasks.velocity import heading_velocity
from npmp.tracking import track

ALIGNMENTS = ("auto", "strides", "frames")
MIXES = ("linear", "variance")
SHORTEST_S = 0.5  # of tracking, for a clip's latents to be worth mixing

Floats = NDArray[np.float64]


class Interpolation(NamedTuple):
    """Robots between two clips, W weights of c robots each; means are over a weight's robots, while
    they are up."""

    weights: Tensor  # (W,) w: 0 the first clip, 1 the second
    seconds: Tensor  # (W,) that the mixed latents last: a clip's own length at its end
    up_s: Tensor  # (W,) mean seconds until the fall, of `seconds` at most
    velocity: Tensor  # (W, 3) forward, lateral [m/s], yaw rate [rad/s] in the heading frame
    qpos: Tensor  # (T + 1, W, nq) float64, of each weight's first robot
    steps: Tensor  # (W,) control steps that the first robot was up
    aligned_by: str  # "strides of FOOT" or "frames"
    tracked_s: tuple[float, float]  # of each clip, for its latents
    dt: float

    def rows(self) -> list[dict[str, float]]:
        """A mapping per weight."""
        names = ("w", "forward_mps", "lateral_mps", "yaw_rate_rps", "up_s", "of_s")
        table = torch.cat((self.weights[:, None], self.velocity), -1).tolist()
        times = zip(self.up_s.tolist(), self.seconds.tolist(), strict=True)
        rows = [(*row, *pair) for row, pair in zip(table, times, strict=True)]
        return [dict(zip(names, row, strict=True)) for row in rows]


def interpolate(
    module: Module,
    data: str | Path | MotionSet,
    first: str,
    second: str,
    *,
    robot: Robot | None = None,
    weights: int = 11,
    align: str = "auto",
    mix: str = "linear",
    copies: int = 1,
    seed: int = 0,
    robots_config: RobotBatchConfig | None = None,
    threads: int = 0,
) -> Interpolation:
    """Drive robots by the latents of two clips of a dataset, mixed at weights from 0 to 1.

    Args:
      first, second: names of clips. A robot with w up to 0.5 starts on the first one's first frame,
        exactly as the reference, with empty memory; one beyond on the second's.
      align: "strides", "frames", or "auto": by strides where both clips have them, else by frames.
      mix: "linear" or "variance", as above.
      copies: robots per weight, worth more than one where physics is randomized.
      robot, robots_config, threads: as of `npmp.analysis.latent_use`. The clips are tracked by an
        ideal robot.

    Raises:
      InputError: for clips that there are not, that the module loses within half a second, that
        have no strides where they are asked for, or no frames of equal phase before the module
        loses one of them.
    """
    _check(weights, align, mix)
    skill = open_module(module)
    robot = robot or robots.load(skill.robot)
    skill.check_robot(robot)
    skill.check_encoder(robot)
    motions = data if isinstance(data, MotionSet) else load_motions(data, robot)
    pair = motions.select([first, second] if first != second else [first])
    z_a, z_b = tracked_latents(skill, robot, pair, (first, second), threads)
    phase_a, phase_b, aligned_by = aligned(pair[first], pair[second], robot, align)
    w = torch.linspace(0.0, 1.0, weights)
    times = [
        frame_pairs(phase_a[: len(z_a) + 1], phase_b[: len(z_b) + 1], float(value)) for value in w
    ]
    commands = [
        mixed(at_times(z_a, t[0]), at_times(z_b, t[1]), float(value), mix)
        for value, t in zip(w, times, strict=True)
    ]
    seconds = [len(z) / robot.control_rate_hz for z in (z_a, z_b)]
    if not all(len(z) for z in commands):
        raise InputError(
            f"no frames of equal phase in what is tracked, {seconds[0]:.2f} s of '{first}' and "
            f"{seconds[1]:.2f} s of '{second}': take other clips, or align=frames"
        )
    task, like = Imitation(robot, motions=pair), robots_config or RobotBatchConfig().like(skill)
    env = TaskEnv(task, weights * copies, robots=like, seed=seed, num_threads=threads)
    result = _command(skill, env, commands, (w > 0.5).long() * (len(pair.motions) - 1), copies)
    return result._replace(
        weights=w, aligned_by=aligned_by, tracked_s=(len(z_a) * env.dt, len(z_b) * env.dt)
    )


def _check(weights: int, align: str, mix: str) -> None:
    """Raises InputError for choices that there are not."""
    for kind, given, known in (("alignment", align, ALIGNMENTS), ("mix", mix, MIXES)):
        if given not in known:
            raise InputError(f"no {kind} '{given}'; there are: {', '.join(known)}")
    if weights < 2:
        raise InputError(f"weights={weights}: at least 2 are needed, for the two clips")


def tracked_latents(
    skill: SkillModule, robot: Robot, pair: MotionSet, names: tuple[str, str], threads: int
) -> tuple[Tensor, Tensor]:
    """Mean latents (steps, d) of both clips, as far as they are tracked. Raises InputError for one
    that is hardly tracked."""
    n = len(pair.motions)
    ideal = RobotBatchConfig().like(skill)
    env = TaskEnv(Imitation(robot, motions=pair), n, robots=ideal, num_threads=threads)
    clip = torch.arange(n)
    result = track(skill, env, clip, env.task.reference.start[clip])
    found = []
    for name in names:
        i = pair.names.index(name)
        steps = int(result.steps[i])
        if steps * env.dt < SHORTEST_S:
            raise InputError(
                f"the module tracks clip '{name}' for {steps * env.dt:.2f} s only; its latents "
                f"need {SHORTEST_S} s: take another"
            )
        found.append(result.latents[:steps, i])
    return found[0], found[1]


def aligned(
    first: ReferenceMotion, second: ReferenceMotion, robot: Robot, align: str
) -> tuple[Floats, Floats, str]:
    """A phase per frame of both clips, equal where they are to be mixed, and by what they are
    aligned.

    Raises:
      InputError: where strides are asked for and a clip has none.
    """
    frames = [np.arange(len(motion.qpos), dtype=np.float64) for motion in (first, second)]
    if align == "frames":
        return frames[0], frames[1], "frames"
    for foot in range(len(robot.foot_bodies)):
        phases = [stride_phase(motion, foot) for motion in (first, second)]
        if phases[0] is not None and phases[1] is not None:
            return phases[0], phases[1], f"strides of {robot.foot_bodies[foot]}"
    if align == "strides":
        raise InputError(
            f"no foot touches down three times in both clips, '{first.name}' and '{second.name}'; "
            "use align=frames"
        )
    return frames[0], frames[1], "frames"


def stride_phase(motion: ReferenceMotion, foot: int) -> Floats | None:
    """Stride phase of every frame (T,), whole at this foot's touch-downs, linear between them and
    beyond the first and last.

    None where the foot touches down fewer than three times: two strides.
    """
    if motion.contacts is None:
        return None
    stands = np.asarray(motion.contacts)[:, foot]
    down = np.flatnonzero(stands[1:] & ~stands[:-1]) + 1.0
    if len(down) < 3:
        return None
    frames = np.arange(len(stands), dtype=np.float64)
    phase = np.interp(frames, down, np.arange(len(down)))
    early, late = frames < down[0], frames > down[-1]
    phase[early] = (frames[early] - down[0]) / (down[1] - down[0])
    phase[late] = len(down) - 1 + (frames[late] - down[-1]) / (down[-1] - down[-2])
    return phase


def frame_pairs(phase_a: Floats, phase_b: Floats, w: float) -> tuple[Floats, Floats]:
    """Which frames of two clips to mix at each control step, as fractional frame numbers (N,) each.

    phase_a, phase_b: (T,) rising phases of one frame more than the clip has latents. The nearer
    clip starts at its first frame, the other at its first frame of equal phase, whole strides
    apart; both end where one of them ends.
    """
    behind = round(phase_b[0] - phase_a[0], 9)
    shift = np.ceil(behind) if w <= 0.5 else np.floor(behind)
    ahead = phase_a + shift  # of clip a, on clip b's count
    phase = ahead[0] if w <= 0.5 else phase_b[0]
    slope_a, slope_b = np.diff(ahead), np.diff(phase_b)
    pairs = []
    while True:
        # rounded, so that whole frames are whole: at w = 0 and 1 the latents are the clip's own, to
        # the bit
        t_a = round(float(np.interp(phase, ahead, np.arange(len(ahead)))), 6)
        t_b = round(float(np.interp(phase, phase_b, np.arange(len(phase_b)))), 6)
        if t_a >= len(slope_a) or t_b >= len(slope_b):
            break
        pairs.append((t_a, t_b))
        phase += (1.0 - w) * slope_a[int(t_a)] + w * slope_b[int(t_b)]
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


def at_times(latents: Tensor, times: Floats) -> Tensor:
    """Latents (T, d) at fractional frames (N,) -> (N, d): linear, held beyond the last."""
    whole = np.floor(times).astype(np.int64)
    part = torch.from_numpy(times - whole).to(latents.dtype).unsqueeze(-1)
    low, high = torch.from_numpy(whole), torch.from_numpy(np.minimum(whole + 1, len(latents) - 1))
    return (1.0 - part) * latents[low] + part * latents[high]


def mixed(first: Tensor, second: Tensor, w: float, mix: str) -> Tensor:
    """(1 - w) first + w second, (N, d); mix="variance": over sqrt((1 - w)^2 + w^2)."""
    scale = math.hypot(1.0 - w, w) if mix == "variance" else 1.0
    return ((1.0 - w) * first + w * second) / scale


class _SequenceRecorder:
    """Follows robots until they fall or their sequence is over."""

    def __init__(self, env: ImitationEnv, length: Tensor, copies: int):
        """length (n,): control steps of each robot's sequence. copies: robots per weight, of which
        the first is kept."""
        self.env, self.length, self.copies, self.t = env, length, copies, 0
        self.up = torch.ones(len(length), dtype=torch.bool)
        self.steps, self.moved = torch.zeros_like(length), torch.zeros(len(length), 3)
        self.qpos = [env.robots.qpos[::copies].clone()]

    def __call__(self, moment: Moment) -> None:
        """As `npmp.rollout.Recorder`."""
        env, state = self.env, moment.step.state
        # the state after a breakdown is that of before, and stands
        self.up = self.up & ~env.robots.broken & ~env.fallen(state)
        counted = self.up & (self.t < self.length)
        self.t += 1
        self.steps += counted
        self.moved += torch.where(counted.unsqueeze(-1), heading_velocity(state), 0.0)
        self.qpos.append(env.robots.qpos[:: self.copies].clone())


def _command(
    skill: SkillModule, env: ImitationEnv, commands: list[Tensor], clip: Tensor, copies: int
) -> Interpolation:
    """Play a sequence of latents per weight, on `copies` robots each, from the first frame of a
    clip each (W,)."""
    weights, clip = len(commands), clip.repeat_interleave(copies)
    env.reset(clip=clip, frame=env.task.reference.start[clip])
    length = torch.tensor([len(z) for z in commands]).repeat_interleave(copies)
    longest = int(length.max())
    # a finished sequence continues with its last latent, which is not evaluated
    padded = [torch.cat((c, c[-1:].expand(longest - len(c), -1))) for c in commands]
    latents = torch.stack(padded, 1).repeat_interleave(copies, 1)
    record = _SequenceRecorder(env, length, copies)
    rollout(LatentActor(skill, latents), env, longest, record, resets=None)
    each = record.steps.unflatten(0, (weights, copies)).float()
    moved = record.moved.unflatten(0, (weights, copies)).sum(1)
    return Interpolation(
        weights=torch.empty(0),
        seconds=length[::copies] * env.dt,
        up_s=each.mean(1) * env.dt,
        velocity=moved / each.sum(1, keepdim=True).clamp(min=1.0),
        qpos=torch.stack(record.qpos),
        steps=record.steps[::copies],
        aligned_by="",
        tracked_s=(0.0, 0.0),
        dt=env.dt,
    )
