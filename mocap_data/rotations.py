"""Unit quaternions (w, x, y, z), batched: the last axis is the quaternion, all others broadcast.

`v_world = rotate(q_world_body, v_body)`; products apply right to left,
`rotate(multiply(a, b), v) == rotate(a, rotate(b, v))`. q and -q are the same rotation. Angles are
in radians. Functions expect unit quaternions; only `normalize` changes a length.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

from mocap_data.arrays import Array

IDENTITY: Array = np.array([1.0, 0.0, 0.0, 0.0])
IDENTITY.flags.writeable = False


def normalize(q: ArrayLike) -> Array:
    """`q` (..., 4) scaled to length 1. Raises ValueError for a quaternion of length 0."""
    q = np.asarray(q, dtype=np.float64)
    length = np.linalg.norm(q, axis=-1, keepdims=True)
    if np.any(length == 0.0):
        raise ValueError("a quaternion of length 0 is not a rotation")
    return q / length


def multiply(a: ArrayLike, b: ArrayLike) -> Array:
    """The product a b, (..., 4): first b, then a."""
    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    aw, ax, ay, az = np.moveaxis(a, -1, 0)
    bw, bx, by, bz = np.moveaxis(b, -1, 0)
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    out[..., 0] = aw * bw - ax * bx - ay * by - az * bz
    out[..., 1] = aw * bx + ax * bw + ay * bz - az * by
    out[..., 2] = aw * by - ax * bz + ay * bw + az * bx
    out[..., 3] = aw * bz + ax * by - ay * bx + az * bw
    return out


def conjugate(q: ArrayLike) -> Array:
    """The inverse rotation of `q`, (..., 4)."""
    return np.asarray(q, dtype=np.float64) * np.array([1.0, -1.0, -1.0, -1.0])


def rotate(q: ArrayLike, v: ArrayLike) -> Array:
    """The vectors `v` (..., 3) rotated by `q` (..., 4), (..., 3); leading axes broadcast."""
    q = np.asarray(q, dtype=np.float64)
    v = np.asarray(v, dtype=np.float64)
    w, x, y, z = np.moveaxis(q, -1, 0)
    vx, vy, vz = np.moveaxis(v, -1, 0)
    # v + 2 w (u x v) + 2 u x (u x v), with u the vector part; written out since np.cross is slow
    tx = 2.0 * (y * vz - z * vy)
    ty = 2.0 * (z * vx - x * vz)
    tz = 2.0 * (x * vy - y * vx)
    out = np.empty((*np.broadcast_shapes(q.shape[:-1], v.shape[:-1]), 3))
    out[..., 0] = vx + w * tx + y * tz - z * ty
    out[..., 1] = vy + w * ty + z * tx - x * tz
    out[..., 2] = vz + w * tz + x * ty - y * tx
    return out


def to_matrix(q: ArrayLike) -> Array:
    """The rotation matrices (..., 3, 3) of `q` (..., 4)."""
    w, x, y, z = np.moveaxis(np.asarray(q, dtype=np.float64), -1, 0)
    rows = [
        [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
        [2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)],
        [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def from_matrix(matrix: ArrayLike) -> Array:
    """The quaternions (..., 4), w >= 0, of rotation matrices (..., 3, 3). Raises
    ValueError for reflections and what is not finite."""
    from scipy.spatial.transform import Rotation  # slow to import

    m = np.asarray(matrix, dtype=np.float64)
    xyzw = Rotation.from_matrix(m.reshape(-1, 3, 3)).as_quat(canonical=True)
    return np.roll(xyzw, 1, axis=-1).reshape(*m.shape[:-2], 4)


def from_axis_angle(axis: ArrayLike, angle: ArrayLike) -> Array:
    """The rotation by `angle` (...) [rad] about the unit vector(s) `axis` (..., 3), (..., 4)."""
    axis = np.asarray(axis, dtype=np.float64)
    half = np.asarray(angle, dtype=np.float64)[..., None] / 2.0
    out = np.empty((*np.broadcast_shapes(axis.shape[:-1], half.shape[:-1]), 4))
    out[..., :1] = np.cos(half)
    out[..., 1:] = np.sin(half) * axis
    return out


def from_euler(order: str, angles: ArrayLike) -> Array:
    """The quaternions of intrinsic Euler angles (..., N) [rad]: "ZXY" is Rz(a0) Rx(a1) Ry(a2)."""
    axes = np.eye(3)[["XYZ".index(letter) for letter in order]]
    pairs = zip(axes, np.moveaxis(np.asarray(angles), -1, 0), strict=True)
    return functools.reduce(multiply, (from_axis_angle(axis, angle) for axis, angle in pairs))


def exp(rotvec: ArrayLike) -> Array:
    """The quaternion (..., 4) of a rotation vector (..., 3): axis times angle [rad]."""
    v = np.asarray(rotvec, dtype=np.float64)
    half = np.linalg.norm(v, axis=-1, keepdims=True) / 2.0
    # sin(half) / angle = sinc / 2 ; np.sinc(x) is sin(pi x) / (pi x) and is safe at 0
    return np.concatenate([np.cos(half), 0.5 * np.sinc(half / np.pi) * v], axis=-1)


def log(q: ArrayLike) -> Array:
    """The rotation vector (..., 3) [rad] of `q` (..., 4), the short way round."""
    q = np.asarray(q, dtype=np.float64)
    q = np.where(q[..., :1] < 0.0, -q, q)
    w = q[..., :1]
    v = q[..., 1:]
    # above 0: the ratio below is 2 for the smallest turns, and for none
    sine = np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    return 2.0 * np.arctan2(sine, w) / sine * v


def yaw(q: ArrayLike) -> Array:
    """The heading (...) [rad] of the x axis of `q` (..., 4), seen from above."""
    w, x, y, z = np.moveaxis(np.asarray(q, dtype=np.float64), -1, 0)
    return np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def difference(a: ArrayLike, b: ArrayLike) -> Array:
    """The rotation vector d (..., 3) [rad] from `a` to `b` in the frame of a: b = a exp(d)."""
    return log(multiply(conjugate(a), b))


def angle(a: ArrayLike, b: ArrayLike) -> Array:
    """The angle (...) [rad] between two rotations, in [0, pi]."""
    return np.linalg.norm(difference(a, b), axis=-1)


def slerp(a: ArrayLike, b: ArrayLike, t: ArrayLike) -> Array:
    """The rotation a share `t` (...) of the short way from `a` to `b`, (..., 4)."""
    return multiply(a, exp(np.asarray(t, dtype=np.float64)[..., None] * difference(a, b)))


def make_continuous(q: ArrayLike) -> Array:
    """`q` (T, ..., 4) with signs that keep neighbours in time on one hemisphere."""
    q = np.asarray(q, dtype=np.float64)
    flips = np.sum(q[1:] * q[:-1], axis=-1, keepdims=True) < 0.0
    sign = np.cumprod(np.where(flips, -1.0, 1.0), axis=0)
    return np.concatenate([q[:1], sign * q[1:]])


def squad(q: ArrayLike, times: ArrayLike, new_times: ArrayLike) -> Array:
    """Rotations `q` (N, ..., 4) at `times` (N,) interpolated at `new_times` (T,), (T, ..., 4).

    SQUAD (Shoemake 1987): between knots i and i + 1, with h from 0 to 1 and inner quaternions s,

        slerp(slerp(q_i, q_i+1, h), slerp(s_i, s_i+1, h), 2 h (1 - h)),

    continuously differentiable. For evenly spaced knots s_i = q_i exp(-(log(q_i^-1 q_i+1) +
    log(q_i^-1 q_i-1)) / 4); in general s follows from the angular velocity of the parabola through
    a knot and its neighbours. Steady turning is reproduced exactly.
    times: increasing, the new ones within them.
    """
    q, times, new = (np.asarray(values, dtype=np.float64) for values in (q, times, new_times))
    if len(times) == 1:
        return np.repeat(q, len(new), axis=0)
    q = make_continuous(q)
    batch = (-1, *([1] * (q.ndim - 1)))  # an array over time, against q
    duration = np.diff(times).reshape(batch)
    # (N - 1, ..., 3); the same vector in the frames of both knots
    turn = difference(q[:-1], q[1:])
    # at the knots, of parabolas through each and its neighbours
    turned = np.concatenate((np.zeros_like(turn[:1]), np.cumsum(turn, axis=0)))
    velocity = np.gradient(turned, times, axis=0, edge_order=2 if len(turn) > 1 else 1)
    # the s_i of the interval behind knot i
    leaving = multiply(q[:-1], exp((velocity[:-1] * duration - turn) / 2.0))
    # and of the one before it
    arriving = multiply(q[1:], exp((turn - velocity[1:] * duration) / 2.0))
    i = np.clip(np.searchsorted(times, new, side="right") - 1, 0, len(times) - 2)
    h = ((new - times[i]) / (times[i + 1] - times[i])).reshape(batch[:-1])
    direct = multiply(q[i], exp(h[..., None] * turn[i]))
    return slerp(direct, slerp(leaving[i], arriving[i], h), 2.0 * h * (1.0 - h))
