"""Pack motions for the page's 3-D replay: shapes of the bodies, and their poses in each frame.

The page has no physics engine, so MuJoCo's kinematics is computed here. The poses of moving bodies
(feet that are welded to them belong to their parent) are 16-bit integers: positions scaled to the
clip's bounding box (0.5 mm over 30 m), unit quaternions to [-1, 1] (3e-5). At 25 frames/s a robot
of 13 moving bodies takes 4.5 kB/s, its ghost as much. Keypoints and soles are packed as positions.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError
from npmp.robots import Robot
from npmp.view.render.clip import ReplayClip, frame_choice
from npmp.view.report.parts import Paragraph, ReplayPlayer, Section, foot_labels
from npmp.view.robot_shapes import body_poses, moving_bodies, shapes

FRAMES_PER_S = 25.0
BUDGET_BYTES = 3_600_000

FloatArray = npt.NDArray[np.float64]


def _pack(
    values: FloatArray, low: FloatArray | float, high: FloatArray | float
) -> npt.NDArray[np.uint16]:
    return np.round((values - low) / (np.asarray(high) - low) * 65535).clip(0, 65535).astype("<u2")


def _text(packed: npt.NDArray[np.uint16]) -> str:
    return base64.b64encode(packed.tobytes()).decode("ascii")


def _pack_clip(
    model: mujoco.MjModel, clip: ReplayClip, keep: npt.NDArray[np.int64], fps: float
) -> dict[str, Any]:
    q = clip.qpos
    reference = clip.reference
    layers = [body_poses(model, q[keep])]
    if reference is not None:
        if len(reference) != len(q):
            raise InputError(
                f"replay of {clip.name!r}: {len(reference)} frames of the reference, expected "
                f"{len(q)}"
            )
        if np.isfinite(reference[keep]).all(axis=1).any():
            layers.append(body_poses(model, reference[keep]))
    poses = np.stack(layers, axis=1)  # (frames, layers, bodies, 7)
    ball = None
    if clip.ball is not None and clip.target is not None:
        # (T, 2, 3): the ball, and its target on the floor
        ball = np.stack((clip.ball, np.pad(clip.target, ((0, 0), (0, 1)))), 1)
    positions = {"points": clip.keypoints, "feet": clip.feet, "ball": ball}
    kept = {name: value[keep] for name, value in positions.items() if value is not None}
    every = np.concatenate([value.reshape(-1, 3) for value in (poses[..., :3], *kept.values())])
    low = np.floor(every.min(axis=0) * 100) / 100
    high = np.maximum(np.ceil(every.max(axis=0) * 100) / 100, low + 0.01)
    turns = _pack(poses[..., 3:], -1.0, 1.0)
    out: dict[str, Any] = {
        "name": clip.name,
        "fps": round(fps, 6),
        "frames": len(keep),
        "layers": len(layers),
        "poses": _text(np.concatenate([_pack(poses[..., :3], low, high), turns], axis=-1)),
        "low": [round(float(v), 3) for v in low],
        "high": [round(float(v), 3) for v in high],
        **{name: _text(_pack(value, low, high)) for name, value in kept.items()},
    }
    if clip.tracked_frames is not None and clip.tracked_frames < len(q):
        out["lost"] = round(clip.tracked_frames / clip.rate_hz, 4)
    if clip.command is not None and clip.achieved is not None:
        both = np.concatenate((clip.command[keep], clip.achieved[keep]), axis=1)
        out["velocity"] = [round(float(v), 3) for v in np.nan_to_num(both, posinf=0, neginf=0).flat]
    if clip.keypoints is not None:
        out["bones"] = [] if clip.bones is None else clip.bones.tolist()
    if clip.feet is not None and clip.contacts is not None:
        out["sole"] = round(clip.sole_m, 4)
        out["stands"] = clip.contacts[keep].astype(int).reshape(-1).tolist()
    if ball is not None:
        out["radius"] = round(clip.ball_m, 4)
    if clip.ground is not None:
        bottom = float(clip.ground.min())
        top = max(float(clip.ground.max()), bottom + 0.01)
        heights = _text(_pack(clip.ground.astype(np.float64), bottom, top))
        out["ground"] = {"heights": heights, "low": bottom, "high": top}
        out["ground"] |= {"points": len(clip.ground), "step": clip.ground_m}
    return out


def frame_bytes(bodies: int, points: int) -> int:
    """Bytes of a frame: poses of bodies and positions of points, 16 bits per number."""
    return 14 * bodies + 6 * points


def pack(
    model: mujoco.MjModel,
    clips: Sequence[ReplayClip],
    foot_bodies: Sequence[str] = (),
    budget_bytes: int = BUDGET_BYTES,
) -> tuple[dict[str, Any], list[str]]:
    """The data of the replay for JSON, and remarks on omissions: clips over the budget are cut to
    the same length, clips without a finite frame are left out."""
    bodies = len(moving_bodies(model))
    chosen, remarks = _within_budget(clips, bodies, budget_bytes)
    packed = []
    for clip, (keep, kept_fps) in zip(clips, chosen, strict=True):
        try:
            packed.append(_pack_clip(model, clip, keep, kept_fps))
        except InputError as error:
            if clip.qpos.shape[1:] != (model.nq,):
                raise
            remarks.append(f"{clip.name} is not in the replay: {error}.")
    return {"shapes": shapes(model, foot_bodies), "bodies": bodies, "clips": packed}, remarks


def _within_budget(
    clips: Sequence[ReplayClip], bodies: int, budget_bytes: int
) -> tuple[list[tuple[npt.NDArray[np.int64], float]], list[str]]:
    """The frames to keep of each clip and their rate, and a remark if clips are cut."""
    each = [
        frame_bytes(
            bodies * (1 if clip.reference is None else 2),
            sum(value.shape[1] for value in (clip.keypoints, clip.feet) if value is not None)
            + (0 if clip.ball is None or clip.target is None else 2),
        )
        for clip in clips
    ]
    kept = [frame_choice(len(c.qpos), c.rate_hz, FRAMES_PER_S) for c in clips]

    def cost(seconds: float) -> int:
        lengths = (min(len(frames), max(1, int(seconds * fps))) for frames, fps in kept)
        return sum(size * length for size, length in zip(each, lengths, strict=True))

    longest = seconds = max((len(frames) / fps for frames, fps in kept), default=0.0)
    while seconds > 1.0 and cost(seconds) > budget_bytes:
        seconds *= 0.9
    if seconds == longest:
        return kept, []
    cut = [(frames[: max(1, int(seconds * fps))], fps) for frames, fps in kept]
    return cut, [f"Long recordings: the replay keeps the first {seconds:.0f} s of each clip."]


def replay_section(
    robot: Robot, clips: Sequence[ReplayClip], notes: str = "", *, end: str = "lost"
) -> tuple[Section, dict[str, int]]:
    """The replay, and the index of each clip by name.

    notes: on these clips. end: the badge after a clip's tracked frames.
    """
    packed, remarks = pack(robot.model(), clips, robot.foot_bodies)
    remark_parts = [Paragraph(remark, "") for remark in remarks]
    packed_clips = packed["clips"]
    if not packed_clips:
        return Section("replay", "Replay", remark_parts), {}
    ghost = any(c["layers"] > 1 for c in packed_clips)
    recording = any("points" in c for c in packed_clips)
    if ghost:
        lead = "The robot in blue, its reference as a grey ghost; lines on the floor: base paths."
    else:
        lead = "The robot in blue; the line on the floor is its base's path."
    if recording:
        lead += " The recording is shown beside the robot, and its keypoints on the robot."
    if any("lost" in c for c in packed_clips):
        lead += f" Faded, with the badge “{end}”: frames that are not evaluated."
    if any("velocity" in c for c in packed_clips):
        lead += " Arrows: velocity commanded (grey) and achieved (blue) in m/s; arcs: yaw rate."
    player = ReplayPlayer(packed, foot_labels(robot.foot_bodies), ghost, recording, end)
    section = Section(
        "replay", "Replay", [Paragraph(f"{lead} {notes}".strip()), player, *remark_parts]
    )
    return section, {clip["name"]: i for i, clip in enumerate(packed_clips)}
