"""From clips to reference motions: markers, floor, offsets, poses, resampling, velocities, figures.

Clip -> marker targets -> floor and footprints -> offsets (jointly over clips) -> poses -> ReferenceMotion
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.signal import butter, sosfiltfilt

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget import ground, pose, quality
from retarget.markers import Layout, layout_of, offset_jacobian, offset_step
from retarget.skeletons import marker_positions, skeleton_of

MIN_FRAMES = 8
MAX_COORDINATE = 1e4  # [m] from the origin; no recording goes further, a garbled number does
TRUNK_LENGTHS = (
    1e-4,
    1e3,
)  # [m] beyond them nothing can be solved; wrong units within them show as large errors
_SAMPLE = 512  # frames from which the offsets are estimated, spread evenly over all clips
_MOVING = 0.15  # [m/s] slower trunks (sitting, lying) take no part, if enough faster frames exist
_SUNK = 0.001  # [m] deeper feet lift the trunk
_LIFT_TIME = 0.3  # [s] within which it rises
_LIFTS = 6


@dataclass(frozen=True)
class Options:
    """How to retarget.

    rate_hz: of the result; the robot's control rate when None.
    regularization: weight of the joints' distance from the home pose, eq. 8 [m^2 / rad^2].
    rounds: alternations of poses and offsets.
    iterations: at most, of Levenberg-Marquardt, for the final poses.
    plant_feet: hold standing feet still and level (see `ground`).
    marker_cutoff_hz: low-pass of the markers before anything else; None for none.
    root_cutoff_hz: low-pass of the root's path; None for none. On a minute of walking 5 Hz halves the root's
        angular and nearly halves its linear acceleration and leaves the RMS marker error as it is.
    foot_weight: of foot markers when the legs are solved on the smoothed root (eq. 8 has 1): a planted foot
        shall stay planted.
    """

    rate_hz: float | None = None
    regularization: float = 0.01
    rounds: int = 6
    iterations: int = 30
    plant_feet: bool = True
    marker_cutoff_hz: float | None = 8.0
    root_cutoff_hz: float | None = 5.0
    foot_weight: float = 100.0

    def __post_init__(self) -> None:
        for name in ("rate_hz", "regularization", "foot_weight", "marker_cutoff_hz", "root_cutoff_hz"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{name} must be positive; it is {value}")
        if self.rounds < 0 or self.iterations < 1:
            raise InputError("rounds must be at least 0 and iterations at least 1")


@dataclass(frozen=True)
class Targets:
    """One clip as the solver sees it: over the floor z = 0, standing paws as high as the robot's foot centres."""

    raw: Array  # (T, M, 3) [m] the animal's markers
    planted: Array  # (T, M, 3) [m] with standing feet held still and level
    heading: Array  # (T, M) [rad] of the animal, held through each foot's stances; zero for trunk markers
    standing: ground.Bools  # (T, F)
    rate_hz: float


@dataclass(frozen=True)
class Solver:
    """A robot made ready: its tree, marker layout and feet."""

    robot: Robot
    tree: pose.Tree
    layout: Layout
    feet: pose.Points = field(repr=False)

    @classmethod
    def of(cls, robot: Robot) -> Solver:
        """Compile the robot and lay out its markers. Raises InputError for a robot that does not fit."""
        tree = pose.tree_of(robot.model())
        body = np.array([tree.body_names.index(name) for name in robot.foot_bodies], dtype=np.intp)
        local = np.tile(robot.foot_offset, (len(body), 1))
        return cls(robot, tree, layout_of(robot, tree), pose.Points(body, local))

    def problem(self, theta: Array, regularization: float) -> pose.Problem:
        """The pose problem of eq. 8 at offset parameters `theta`."""
        return pose.Problem(
            self.tree,
            self.layout.points(theta),
            self.robot.home_joints,
            self.robot.joint_lower,
            self.robot.joint_upper,
            regularization,
        )


def retarget(
    clip: Clip,
    robot: Robot,
    *,
    start: int = 0,
    stop: int | None = None,
    offsets: Mapping[str, Array] | None = None,
    **options: Any,
) -> ReferenceMotion:
    """The clip as a motion of the robot: eq. 8 of Bohez et al. 2022.

    start, stop: frames of the clip to use; the offsets are estimated from these, too.
    offsets: marker offsets by name, as from `estimate_offsets`; estimated from the clip when None.
    options: the fields of `Options`.

    Raises InputError for a clip without the needed keypoints, too short or of absurd size, and for bad options.
    """
    chosen = _options(options)
    solver = Solver.of(robot)
    if start != 0 or stop is not None:
        clip = clip.crop(start, stop)
    targets = targets_of(clip, solver, chosen)
    with _solvable([clip]):
        theta = _estimate([targets], solver, chosen) if offsets is None else solver.layout.parameters(offsets)
        return _solve(clip, targets, theta, solver, chosen)


def retarget_many(
    clips: Sequence[Clip],
    robot: Robot,
    *,
    offsets: Mapping[str, Array] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> MotionSet:
    """All clips as motions of the robot; clips of one skeleton (the same keypoint names) share offsets.

    progress: called as progress(done, total, clip name) before each clip, and once at the end with an empty
        name. The offsets and options are kept in the result's provenance.
    Raises InputError as `retarget` does, and for no clips or two of the same name.
    """
    chosen = _options(options)
    if not clips:
        raise InputError("there are no clips to retarget")
    names = [clip.name for clip in clips]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two clips have the same name: {', '.join(twice)}")
    solver = Solver.of(robot)
    ready = [targets_of(clip, solver, chosen) for clip in clips]
    given = None if offsets is None else solver.layout.parameters(offsets)
    thetas: dict[tuple[str, ...], Array] = {}
    for clip in clips:
        if clip.names not in thetas:
            same = [(other, t) for other, t in zip(clips, ready, strict=True) if other.names == clip.names]
            with _solvable([other for other, _ in same]):
                thetas[clip.names] = (
                    _estimate([t for _, t in same], solver, chosen) if given is None else given
                )
    motions = []
    for done, (clip, targets) in enumerate(zip(clips, ready, strict=True)):
        if progress is not None:
            progress(done, len(clips), clip.name)
        with _solvable([clip]):
            motions.append(_solve(clip, targets, thetas[clip.names], solver, chosen))
    if progress is not None:
        progress(len(clips), len(clips), "")
    found = [_by_name(solver.layout, theta) for theta in thetas.values()]
    provenance = {
        "method": "eq. 8 of arXiv 2203.17138",
        "options": json.dumps(asdict(chosen)),
        "offsets": json.dumps([{name: offset.tolist() for name, offset in named.items()} for named in found]),
    }
    return MotionSet(
        robot.name, robot.model_sha256, robot.joint_names, robot.body_names, tuple(motions), provenance
    )


def estimate_offsets(clips: Sequence[Clip], robot: Robot, **options: Any) -> dict[str, Array]:
    """Marker offsets (3,) [m] by marker name, jointly over `clips` of one skeleton.

    See `retarget.markers` for their frames. options: the fields of `Options`. Raises InputError as
    `retarget` does.
    """
    if not clips:
        raise InputError("there are no clips to estimate offsets from")
    chosen = _options(options)
    solver = Solver.of(robot)
    ready = [targets_of(clip, solver, chosen) for clip in clips]
    with _solvable(clips):
        return _by_name(solver.layout, _estimate(ready, solver, chosen))


def _options(given: Mapping[str, Any]) -> Options:
    known = [entry.name for entry in fields(Options)]
    for name in given:
        if name not in known:
            raise unknown("retargeting option", name, known)
    return Options(**given)


@contextmanager
def _solvable(clips: Sequence[Clip]) -> Iterator[None]:
    """Equations without a solution are the clips' fault: LinAlgError becomes an InputError that names them."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        named = (
            f"clip {clips[0].name!r}"
            if len(clips) == 1
            else f"one of {len(clips)} clips ({clips[0].name!r}, ...)"
        )
        raise InputError(
            f"{named} cannot be retargeted: its equations have no solution ({error}); are its units and axes right?"
        ) from None


def _by_name(layout: Layout, theta: Array) -> dict[str, Array]:
    return dict(zip(layout.names, layout.offsets(theta), strict=True))


def targets_of(clip: Clip, solver: Solver, options: Options) -> Targets:
    """The clip's markers on the floor, stances and headings. Raises InputError for an unfit clip."""
    if clip.num_frames < MIN_FRAMES:
        raise InputError(
            f"clip {clip.name!r} has {clip.num_frames} frame{'s' if clip.num_frames != 1 else ''}; "
            f"retargeting needs at least {MIN_FRAMES}"
        )
    layout = solver.layout
    _check_coordinates(clip)
    raw = marker_positions(clip, skeleton_of(clip), layout.names)
    smooth = low_pass(raw, clip.rate_hz, options.marker_cutoff_hz)
    foot_columns = np.flatnonzero(~layout.on_trunk)
    standing = ground.stance(smooth[:, foot_columns], clip.rate_hz)
    floor = ground.floor_height(smooth[:, foot_columns], standing)
    planted = smooth - [0.0, 0.0, floor]
    if options.plant_feet:
        planted[:, foot_columns] = ground.plant(planted[:, foot_columns], standing)
    # The robot's foot marker is the centre of a sphere: a foot stands when it is a radius above the floor.
    planted[..., 2] += solver.robot.foot_radius
    raw = raw - [0.0, 0.0, floor - solver.robot.foot_radius]
    x = layout.position[:, 0]
    front, hind = np.flatnonzero(layout.on_trunk & (x > 0.0)), np.flatnonzero(layout.on_trunk & (x < 0.0))
    if not (len(front) and len(hind)):
        raise InputError(f"robot '{solver.robot.name}' needs trunk markers in front of and behind its base")
    length = float(
        np.median(np.linalg.norm((raw[:, front].mean(axis=1) - raw[:, hind].mean(axis=1)), axis=-1))
    )
    if not TRUNK_LENGTHS[0] <= length <= TRUNK_LENGTHS[1]:
        raise InputError(
            f"clip {clip.name!r}: shoulders and hips are {length:.3g} m apart, which is no animal; "
            "are its units (metres are expected) and keypoint names right?"
        )
    along = ground.heading(raw[:, front].mean(axis=1), raw[:, hind].mean(axis=1))
    heading = np.zeros(raw.shape[:2])
    for foot, column in enumerate(foot_columns):
        heading[:, column] = ground.hold(along[:, None], standing[:, foot])[:, 0]
    return Targets(raw, planted, heading, standing, clip.rate_hz)


def _check_coordinates(clip: Clip) -> None:
    """Refuse what only a garbled file or a wrong unit says. Raises InputError naming keypoint and frame."""
    size = np.abs(clip.positions).max(axis=-1)  # (T, M)
    frame, keypoint = np.unravel_index(int(np.argmax(size)), size.shape)
    if size[frame, keypoint] > MAX_COORDINATE:
        raise InputError(
            f"clip {clip.name!r}: keypoint {clip.names[keypoint]} is {size[frame, keypoint]:.3g} m from the origin in "
            f"frame {frame} of the clip, at most {MAX_COORDINATE:g} m are expected; a garbled number, or other units?"
        )


def _sample(clips: Sequence[Targets], trunk: np.ndarray) -> tuple[Array, Array]:
    """Planted targets (S, M, 3) and headings (S, M) of frames spread over all clips, moving ones first."""
    planted = np.concatenate([t.planted for t in clips])
    heading = np.concatenate([t.heading for t in clips])
    speed = [
        np.linalg.norm(np.gradient(t.planted[:, trunk, :2].mean(axis=1), axis=0), axis=-1) * t.rate_hz
        for t in clips
    ]
    frames = np.flatnonzero(np.concatenate(speed) > _MOVING)
    if len(frames) < _SAMPLE // 4:
        frames = np.arange(len(planted))
    chosen = frames[
        np.unique(np.linspace(0, len(frames) - 1, min(_SAMPLE, len(frames))).round().astype(np.intp))
    ]
    return planted[chosen], heading[chosen]


def _estimate(clips: Sequence[Targets], solver: Solver, options: Options) -> Array:
    """Alternate poses and offsets over a sample of frames; parameters (P,)."""
    layout = solver.layout
    planted, heading = _sample(clips, layout.on_trunk)
    theta = layout.initial()
    qpos: Array | None = None
    for _ in range(options.rounds):
        problem = solver.problem(theta, options.regularization)
        targets = planted + layout.displacement(theta, heading)
        if qpos is None:
            qpos = pose.fit_root(problem.points, targets, problem.stand)
        qpos = pose.solve_poses(problem, targets, qpos, iterations=5, tolerance=1e-4)
        system = pose.linearize(problem, qpos, targets)
        jacobian = offset_jacobian(layout, rotations.to_matrix(qpos[:, 3:7]), heading)
        step = offset_step(system, jacobian)
        theta = theta + step
        if np.abs(step).max() < 1e-5:
            break
    return theta


def _poses(goal: Array, theta: Array, rate_hz: float, solver: Solver, options: Options) -> Array:
    """Poses (T, 7 + J) for marker targets `goal` (T, M, 3): eq. 8, then a smooth root, then the legs on it."""
    problem = solver.problem(theta, options.regularization)
    start = pose.fit_root(problem.points, goal, problem.stand)
    # A Gauss-Newton step below 1e-4 leaves an error far below it; the root is smoothed right after anyway.
    qpos = pose.solve_poses(problem, goal, start, iterations=options.iterations, tolerance=1e-4)
    # Eq. 8 knows no time: where the trunk's markers say little (its roll), the legs' regularizer shakes it
    # at every step. So the root's path is smoothed, and the legs put their feet where they belong on it.
    qpos[:, :7] = smooth_root(qpos[:, :7], rate_hz, options.root_cutoff_hz)
    limbs = ~solver.layout.on_trunk
    points = pose.Points(problem.points.body[limbs], problem.points.local[limbs])
    weight = np.full(np.count_nonzero(limbs), options.foot_weight)
    legs = replace(problem, points=points, weight=weight, hold_root=True)
    qpos = pose.solve_poses(legs, goal[:, limbs], qpos, iterations=options.iterations)
    # Legs that cannot fold as far as the animal's (when it sits) would push their feet into the floor: carry
    # the trunk higher there. Feet at their bounds follow only in part, hence some rounds.
    for _ in range(_LIFTS):
        feet = pose.positions_of(solver.feet, *pose.forward(solver.tree, qpos))
        depth = solver.robot.foot_radius - feet[..., 2].min(axis=1)
        if depth.max() <= _SUNK:
            break
        lift = ground.envelope(np.maximum(depth - 0.5 * _SUNK, 0.0), round(_LIFT_TIME * rate_hz))
        moved = lift > 1e-6
        qpos[:, 2] += lift
        qpos[moved] = pose.solve_poses(
            legs, goal[moved][:, limbs], qpos[moved], iterations=options.iterations
        )
    return qpos


def _solve(clip: Clip, targets: Targets, theta: Array, solver: Solver, options: Options) -> ReferenceMotion:
    robot, layout, tree = solver.robot, solver.layout, solver.tree
    shift = layout.displacement(theta, targets.heading)
    qpos = _poses(targets.planted + shift, theta, clip.rate_hz, solver, options)
    world = pose.positions_of(layout.points(theta), *pose.forward(tree, qpos))
    figures = quality.marker_errors(world, targets.raw + shift)

    rate = float(options.rate_hz or robot.control_rate_hz)
    if clip.duration_s * rate < 3.0:
        raise InputError(
            f"clip {clip.name!r} of {clip.duration_s:.2f} s is too short for a motion at {rate:g} Hz"
        )
    qpos, standing = resample(qpos, targets.standing, clip.rate_hz, rate)
    qpos[:, 7:] = np.clip(qpos[:, 7:], robot.joint_lower, robot.joint_upper)  # a spline may overshoot a bound
    qvel = velocities(qpos, rate)
    position, rotation = pose.forward(tree, qpos)
    feet = pose.positions_of(solver.feet, position, rotation)
    figures |= {
        "foot_slide_mps": quality.foot_slide(feet, standing, rate),
        "penetration_m": quality.penetration(feet, robot.foot_radius),
        "limit_violations": quality.limit_violations(
            qpos[:, 7:], qvel[:, 6:], robot.joint_lower, robot.joint_upper, robot.velocity_limit
        ),
    }
    return ReferenceMotion(
        name=clip.name,
        qpos=qpos,
        qvel=qvel,
        body_pos=position,
        body_quat=rotations.from_matrix(rotation),
        rate_hz=rate,
        source=clip.source,
        licence=clip.licence,
        quality=figures,
    )


def low_pass(values: Array, rate_hz: float, cutoff_hz: float | None) -> Array:
    """`values` (T, ...) low-passed without lag (Butterworth of order 2, forth and back); a copy for None."""
    if cutoff_hz is None or cutoff_hz >= 0.45 * rate_hz:
        return values.copy()
    sections = butter(2, cutoff_hz, fs=rate_hz, output="sos")
    return np.asarray(sosfiltfilt(sections, values, axis=0, padlen=min(len(values) - 1, round(rate_hz / 2))))


def smooth_root(root: Array, rate_hz: float, cutoff_hz: float | None) -> Array:
    """Root positions and quaternions (T, 7), low-passed."""
    continuous = np.concatenate((root[:, :3], rotations.make_continuous(root[:, 3:7])), axis=1)
    out = low_pass(continuous, rate_hz, cutoff_hz)
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    return out


def resample(
    qpos: Array, standing: ground.Bools, rate_hz: float, new_rate_hz: float
) -> tuple[Array, ground.Bools]:
    """Poses (T, 7 + J) and stances (T, F) at another rate: cubic splines; the nearest frame's stance.

    Root quaternions are splined by component on one hemisphere and renormalized: at capture rates (some
    degrees from frame to frame) this agrees with SQUAD to fourth order in the frame time and stays twice
    differentiable.
    """
    continuous = qpos.copy()
    continuous[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
    if new_rate_hz == rate_hz:
        return continuous, standing
    last = (len(qpos) - 1) / rate_hz
    new = np.minimum(np.arange(math.floor(last * new_rate_hz + 1e-9) + 1) / new_rate_hz, last)
    out = np.asarray(CubicSpline(np.arange(len(qpos)) / rate_hz, continuous, axis=0)(new))
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    return out, standing[np.round(new * rate_hz).astype(np.intp)]


def velocities(qpos: Array, rate_hz: float) -> Array:
    """Velocities (T, 6 + J) of poses (T, 7 + J) by BACKWARD differences; the first row repeats the second.

    qvel[t] leads from pose t - 1 to pose t, on the manifold, as MuJoCo's mj_differentiatePos: root linear
    velocity in the world, root angular velocity in the root's frame, joint velocities. So integrating
    qvel[t] from pose t - 1 for one period gives pose t.
    """
    step = np.empty((len(qpos) - 1, qpos.shape[1] - 1))
    step[:, :3] = np.diff(qpos[:, :3], axis=0)
    step[:, 3:6] = rotations.difference(qpos[:-1, 3:7], qpos[1:, 3:7])
    step[:, 6:] = np.diff(qpos[:, 7:], axis=0)
    return np.concatenate((step[:1], step)) * rate_hz
