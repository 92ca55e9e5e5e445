"""Write a shot as a recording for Rerun's viewer (.rrd): robot, ghost, ground, curves, images."""

from __future__ import annotations

import io
from collections.abc import Mapping
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
from npmp.view.robot_shapes import (
    BALL,
    COLOURS,
    GHOST,
    GROUND,
    TARGET,
    body_poses,
    moving_bodies,
    shapes,
)

SUFFIX = ".rrd"
TIMELINE = "time"
GHOST_ALPHA = 90
FIGURE = (70, 90, 160)
PATH = (230, 120, 30)
# radius of lines [m]
LINE_M = 0.008
# margin of rough ground around the robot's path [m]
MARGIN_M = 3.0
JPEG_QUALITY = 80
VELOCITIES = ("forward_mps", "lateral_mps", "yaw_rate_rps")


def load_rerun() -> ModuleType:
    """The package rerun. Raises InputError if it is absent."""
    with importing("a .rrd needs rerun: pip install 'npmp[rerun]'"):
        import rerun
    return rerun


def write_rrd(out: Path, shot: Shot, images: Frames | None = None) -> int:
    """Write a shot atomically. Returns the file's size [bytes].

    images: of the robot's camera, from the shot's begin.

    Raises:
      InputError: if rerun is absent.
    """
    rr = load_rerun()
    clip = shot.clip
    lines = curves(shot)
    time = [rr.TimeColumn(TIMELINE, duration=np.arange(len(shot.qpos)) / clip.rate_hz)]
    with atomic_path(out) as path:
        stream = rr.RecordingStream("npmp")
        stream.save(path, default_blueprint=_blueprint(lines, has_images=images is not None))
        stream.send_recording_name(shot.title or clip.name)
        stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
        if shot.has("robot"):
            _log_robot(rr, stream, "robot", shot, shot.qpos, time)
        if clip.reference is not None and shot.has("ghost"):
            _log_robot(rr, stream, "ghost", shot, clip.reference, time)
        _log_surroundings(rr, stream, shot, time)
        for name, values in lines.items():
            stream.send_columns(name, indexes=time, columns=rr.Scalars.columns(scalars=values))
        if images is not None:
            _log_images(rr, stream, images)
        stream.flush()
        stream.disconnect()
        return path.stat().st_size


def curves(shot: Shot) -> dict[str, Array]:
    """Curves (T,) by GROUP/PLOT/LINE: the shot's own, else joint angles [rad] and velocities."""
    if shot.curves:
        return dict(shot.curves)
    clip = shot.clip
    lines: dict[str, Array] = {}
    for j, name in enumerate(shot.robot.joint_names, 7):
        lines[f"joints/{name}/position"] = clip.qpos[:, j]
        if clip.reference is not None:
            lines[f"joints/{name}/reference"] = clip.reference[:, j]
    for line, values in (("command", clip.command), ("velocity", clip.achieved)):
        if values is not None:
            lines |= {f"base/{name}/{line}": of for name, of in zip(VELOCITIES, values.T)}
    return lines


def _blueprint(lines: Mapping[str, Array], *, has_images: bool) -> Any:
    """The robot on the left, a tab with a plot per joint or velocity on the right."""
    import rerun.blueprint as rrb

    plots = dict.fromkeys(name.rpartition("/")[0] for name in lines)
    tabs: dict[str, list[Any]] = {}
    for plot in plots:
        group, _, name = plot.partition("/")
        tabs.setdefault(group, []).append(rrb.TimeSeriesView(origin=plot, name=name))
    grids = [rrb.Grid(*views, name=group) for group, views in tabs.items()]
    left: list[Any] = [rrb.Spatial3DView(origin="world", name="world")]
    if has_images:
        left.append(rrb.Spatial2DView(origin="camera", name="camera"))
    return rrb.Blueprint(rrb.Horizontal(rrb.Vertical(*left), rrb.Tabs(*grids)))


def _log_robot(rr: Any, stream: Any, name: str, shot: Shot, qpos: Array, time: list[Any]) -> None:
    """The shapes of a robot's bodies, and their poses over time."""
    model = shot.robot.model(visuals=True)
    parts = shapes(model, shot.robot.foot_bodies)
    poses = body_poses(model, qpos)
    for i, body in enumerate(moving_bodies(model)):
        entity = f"world/{name}/{model.body(body).name}"
        pose = rr.Transform3D.columns(
            translation=poses[:, i, :3], quaternion=poses[:, i, [4, 5, 6, 3]]
        )
        stream.send_columns(entity, indexes=time, columns=pose)
        for k, part in enumerate(part for part in parts if part["b"] == i):
            colour = (*GHOST, GHOST_ALPHA) if name == "ghost" else COLOURS[part["c"]]
            stream.log(f"{entity}/{k}", _shape(rr, part, colour), static=True)


def _shape(rr: Any, part: Mapping[str, Any], colour: tuple[int, ...]) -> Any:
    """A shape of `shapes` as an archetype of rerun."""
    kind = part["t"]
    size = part["s"]
    centre = np.array(part["p"])
    turn = np.array(part["q"])
    if kind == "mesh":
        corners = centre + rotations.rotate(turn, np.array(part["v"]))
        return rr.Mesh3D(vertex_positions=corners, triangle_indices=part["f"], albedo_factor=colour)
    form: dict[str, Any] = {
        "quaternions": [turn[[1, 2, 3, 0]]],
        "colors": [colour],
        "fill_mode": "solid",
    }
    if kind == "capsule":
        # rerun's begins at its origin
        begin = centre - rotations.rotate(turn, [0.0, 0.0, size[1]])
        return rr.Capsules3D(radii=size[0], lengths=2 * size[1], translations=[begin], **form)
    if kind == "cylinder":
        return rr.Cylinders3D(radii=size[0], lengths=2 * size[1], centers=[centre], **form)
    if kind == "sphere":
        return rr.Ellipsoids3D(half_sizes=[[size[0]] * 3], centers=[centre], **form)
    return rr.Boxes3D(half_sizes=[size], centers=[centre], **form)


def _log_surroundings(rr: Any, stream: Any, shot: Shot, time: list[Any]) -> None:
    """The recording's figure, path, ground, ball and target."""
    clip = shot.clip
    count = len(shot.qpos)
    if (figure := shot.figure) is not None and clip.bones is not None:
        strips = figure[:, clip.bones].reshape(-1, 2, 3)
        columns = rr.LineStrips3D.columns(strips=strips).partition([len(clip.bones)] * count)
        style = rr.LineStrips3D.from_fields(radii=LINE_M, colors=FIGURE)
        stream.log("world/recording", style, static=True)
        stream.send_columns("world/recording", indexes=time, columns=columns)
    if shot.path is not None:
        line = np.pad(shot.path, ((0, 0), (0, 1)))
        stream.log("world/path", rr.LineStrips3D([line], radii=LINE_M, colors=PATH), static=True)
    if clip.ground is not None:
        stream.log("world/ground", _ground(rr, shot), static=True)
    if clip.ball is not None and clip.target is not None:
        target = np.pad(clip.target, ((0, 0), (0, 1)))
        for name, points, colour in (("ball", clip.ball, BALL), ("target", target, TARGET)):
            style = rr.Points3D.from_fields(radii=clip.ball_m, colors=colour)
            stream.log(f"world/{name}", style, static=True)
            columns = rr.Points3D.columns(positions=points)
            stream.send_columns(f"world/{name}", indexes=time, columns=columns)


def _ground(rr: Any, shot: Shot) -> Any:
    """Rough ground around the robot's path as a mesh."""
    heights = shot.clip.ground
    assert heights is not None
    spacing = shot.clip.ground_m
    low = np.floor((shot.qpos[:, :2].min(axis=0) - MARGIN_M) / spacing).astype(int)
    high = np.ceil((shot.qpos[:, :2].max(axis=0) + MARGIN_M) / spacing).astype(int)
    x, y = np.meshgrid(np.arange(low[0], high[0] + 1), np.arange(low[1], high[1] + 1))
    z = heights[y % len(heights), x % len(heights)]
    corners = np.arange(x.size).reshape(x.shape)
    near = corners[:-1, :-1], corners[:-1, 1:]
    far = corners[1:, :-1], corners[1:, 1:]
    faces = np.concatenate([np.stack((*near, far[1]), -1), np.stack((near[0], far[1], far[0]), -1)])
    return rr.Mesh3D(
        vertex_positions=np.stack((x * spacing, y * spacing, z), -1).reshape(-1, 3),
        triangle_indices=faces.reshape(-1, 3),
        albedo_factor=GROUND,
    )


def _log_images(rr: Any, stream: Any, images: Frames) -> None:
    encoded = []
    for picture in images.pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=JPEG_QUALITY)
        encoded.append(file.getvalue())
    time = rr.TimeColumn(TIMELINE, duration=np.arange(len(encoded)) / images.fps)
    columns = rr.EncodedImage.columns(blob=encoded, media_type=["image/jpeg"] * len(encoded))
    stream.send_columns("camera", indexes=[time], columns=columns)
