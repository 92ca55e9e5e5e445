"""Write a shot as a recording for Rerun's viewer (.rrd): robot, ghost, curves, images."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import importing
from mocap_data.files import atomic_path
from npmp.view.render.film import Frames
from npmp.view.render.shot import Shot
from npmp.view.robot_shapes import COLOURS, body_poses, moving_bodies, shapes

SUFFIX = ".rrd"
GHOST = (90, 140, 220, 90)
VELOCITIES = ("forward_mps", "lateral_mps", "yaw_rate_rps")


def load_rerun() -> ModuleType:
    """The package rerun. Raises InputError if it is absent."""
    with importing("a .rrd needs rerun: pip install 'npmp[rerun]'"):
        import rerun
    return rerun


def write_rrd(out: Path, shot: Shot, images: Frames | None = None) -> int:
    """Write a shot, and images of the robot's camera, atomically. Returns the file's size [bytes].
    Raises InputError if rerun is absent."""
    rr = load_rerun()
    with atomic_path(out) as path:
        stream = rr.RecordingStream("npmp")
        try:
            _send(rr, stream, path, shot, images)
        finally:
            stream.disconnect()
        return path.stat().st_size


def _send(rr: Any, stream: Any, path: Path, shot: Shot, images: Frames | None) -> None:
    """Log a shot to a stream that saves to `path`."""
    clip = shot.clip
    time = rr.TimeColumn("time", duration=np.arange(len(shot.qpos)) / clip.rate_hz)
    stream.save(path)
    stream.send_recording_name(shot.title or clip.name)
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)

    def send(entity: str, columns: Iterable[Any], times: Any = time) -> None:
        stream.send_columns(entity, indexes=[times], columns=columns)

    model = shot.robot.model(visuals=True)
    parts = shapes(model, shot.robot.foot_bodies)
    for name, qpos in (("robot", clip.qpos), ("ghost", clip.reference)):
        if qpos is None or not shot.has(name):
            continue
        poses = body_poses(model, qpos)
        for i, body in enumerate(moving_bodies(model)):
            entity = f"world/{name}/{model.body(body).name}"
            place = {"translation": poses[:, i, :3], "quaternion": poses[:, i, [4, 5, 6, 3]]}
            send(entity, rr.Transform3D.columns(**place))
            for k, part in enumerate(part for part in parts if part["b"] == i):
                colour = GHOST if name == "ghost" else COLOURS[part["c"]]
                stream.log(f"{entity}/{k}", _shape(rr, part, colour), static=True)

    if (figure := shot.figure) is not None and clip.bones is not None:
        strips = rr.LineStrips3D.columns(strips=figure[:, clip.bones].reshape(-1, 2, 3))
        send("world/recording", strips.partition([len(clip.bones)] * len(figure)))
    if clip.ball is not None:
        radii = np.full(len(clip.ball), clip.ball_m)
        send("world/ball", rr.Points3D.columns(positions=clip.ball, radii=radii))
    for name, values in (dict(shot.curves) or _curves(shot)).items():
        send(name, rr.Scalars.columns(scalars=values))
    if images is not None:
        files = [io.BytesIO() for _ in images.pictures]
        for picture, file in zip(images.pictures, files):
            Image.fromarray(picture).save(file, "JPEG")
        seconds = rr.TimeColumn("time", duration=np.arange(len(files)) / images.fps)
        blobs = [file.getvalue() for file in files]
        kinds = ["image/jpeg"] * len(files)
        send("camera", rr.EncodedImage.columns(blob=blobs, media_type=kinds), seconds)


def _curves(shot: Shot) -> dict[str, Array]:
    """Joint angles [rad] and velocities (T,) by GROUP/PLOT/LINE."""
    clip = shot.clip
    lines: dict[str, Array] = {}
    for line, values in (("position", clip.qpos), ("reference", clip.reference)):
        if values is not None:
            names = shot.robot.joint_names
            lines |= {f"joints/{name}/{line}": of for name, of in zip(names, values[:, 7:].T)}
    for line, values in (("command", clip.command), ("velocity", clip.achieved)):
        if values is not None:
            lines |= {f"base/{name}/{line}": of for name, of in zip(VELOCITIES, values.T)}
    return lines


def _shape(rr: Any, part: Mapping[str, Any], colour: tuple[int, ...]) -> Any:
    """A shape of `shapes` for rerun."""
    kind = part["t"]
    size = part["s"]
    centre = np.array(part["p"])
    turn = np.array(part["q"])
    if kind == "mesh":
        corners = centre + rotations.rotate(turn, np.array(part["v"]))
        return rr.Mesh3D(vertex_positions=corners, triangle_indices=part["f"], albedo_factor=colour)
    form: dict[str, Any] = {"quaternions": [turn[[1, 2, 3, 0]]], "colors": [colour]}
    form["fill_mode"] = "solid"
    if kind == "capsule":
        # rerun's begins at its origin
        begin = centre - rotations.rotate(turn, [0.0, 0.0, size[1]])
        return rr.Capsules3D(radii=size[0], lengths=2 * size[1], translations=[begin], **form)
    if kind == "cylinder":
        return rr.Cylinders3D(radii=size[0], lengths=2 * size[1], centers=[centre], **form)
    if kind == "sphere":
        return rr.Ellipsoids3D(half_sizes=[[size[0]] * 3], centers=[centre], **form)
    return rr.Boxes3D(half_sizes=[size], centers=[centre], **form)
