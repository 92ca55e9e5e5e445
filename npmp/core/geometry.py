"""Rotation matrices in torch, for simulation, features and imagination.

Orientations are 3x3 matrices, not quaternions: a matrix has no double cover, its products are
single batched multiplications, and its columns are the networks' inputs.

Conventions: `R` maps local vectors to the world, `v_w = R @ v_b`; a rotation vector is axis times
angle [rad].
"""

from __future__ import annotations

import torch
from torch import Tensor

# rows x, y, z: the generators of SO(3), flattened, so that w @ _GENERATORS is the flattened skew
# matrix of w
_GENERATORS = torch.tensor(
    [
        [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0],
        [0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)
# (9, 4): a flattened rotation to the vector of its antisymmetric part, and to its trace
_ANTISYMMETRIC_AND_TRACE = torch.cat((0.5 * _GENERATORS.T, torch.eye(3).reshape(9, 1)), 1)

# (16, 9): the flattened outer product of a unit quaternion with itself to the flattened rotation
# minus the identity
_QUAT_PRODUCTS = torch.zeros(4, 4, 9)
_QUAT_PRODUCTS[2, 2, [0, 8]] = _QUAT_PRODUCTS[3, 3, [0, 4]] = _QUAT_PRODUCTS[1, 1, [4, 8]] = -2.0
_QUAT_PRODUCTS[1, 2, [1, 3]] = _QUAT_PRODUCTS[1, 3, [2, 6]] = _QUAT_PRODUCTS[2, 3, [5, 7]] = 2.0
_QUAT_PRODUCTS[0, 3, 3] = _QUAT_PRODUCTS[0, 2, 2] = _QUAT_PRODUCTS[0, 1, 7] = 2.0
_QUAT_PRODUCTS[0, 3, 1] = _QUAT_PRODUCTS[0, 2, 6] = _QUAT_PRODUCTS[0, 1, 5] = -2.0
_QUAT_PRODUCTS = _QUAT_PRODUCTS.reshape(16, 9)


_placed: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def _like(constant: Tensor, x: Tensor) -> Tensor:
    """A constant of this module on the device and of the type of x, copied there once."""
    if constant.device == x.device and constant.dtype == x.dtype:
        return constant
    key = (id(constant), x.device, x.dtype)
    if key not in _placed:
        _placed[key] = constant.to(x)
    return _placed[key]


def skew(w: Tensor) -> Tensor:
    """The matrix K of the cross product, `K @ v = w x v`. w (..., 3) -> (..., 3, 3)."""
    return (w @ _like(_GENERATORS, w)).unflatten(-1, (3, 3))


def exp_so3(w: Tensor) -> Tensor:
    """The rotation of a rotation vector (Rodrigues). w (..., 3) [rad] -> (..., 3, 3)."""
    squared = (w * w).sum(-1)
    small = squared < 1e-6
    angle = torch.where(small, torch.ones_like(squared), squared).sqrt()
    # below a milliradian the series is exact in single precision, with a gradient at zero
    first = torch.where(small, 1.0 - squared / 6.0, torch.sin(angle) / angle)
    second = torch.where(small, 0.5 - squared / 24.0, (1.0 - torch.cos(angle)) / (angle * angle))
    k = skew(w)
    identity = torch.eye(3, dtype=w.dtype, device=w.device)
    return identity + first[..., None, None] * k + second[..., None, None] * (k @ k)


def log_so3(rotation: Tensor) -> Tensor:
    """The rotation vector of a rotation of less than half a turn; the inverse of `exp_so3`. (...,
    3, 3) -> (..., 3) [rad].

    For rotations of one control step. Within a milliradian of half a turn the axis is undetermined;
    the result stays finite.
    """
    # the axis times the sine of the angle, and one plus twice its cosine, in one product
    projected = rotation.flatten(-2) @ _like(_ANTISYMMETRIC_AND_TRACE, rotation)
    antisymmetric = projected[..., :3]
    sine = torch.linalg.vector_norm(antisymmetric, dim=-1)
    cosine = 0.5 * (projected[..., 3] - 1.0)
    small = sine < 1e-4
    angle = torch.atan2(sine, cosine)
    scale = torch.where(
        small, 1.0 + sine * sine / 6.0, angle / torch.where(small, torch.ones_like(sine), sine)
    )
    return scale.unsqueeze(-1) * antisymmetric


def to_world(rotation: Tensor, v: Tensor) -> Tensor:
    """Local vectors in the world frame. rotation (..., 3, 3), v (..., 3) -> (..., 3)."""
    return (rotation @ v.unsqueeze(-1)).squeeze(-1)


def to_local(rotation: Tensor, v: Tensor) -> Tensor:
    """World vectors in the local frame. rotation (..., 3, 3), v (..., 3) -> (..., 3)."""
    return (v.unsqueeze(-2) @ rotation).squeeze(-2)


def matrix_from_quat(q: Tensor) -> Tensor:
    """Rotation matrices of unit quaternions (w, x, y, z). (..., 4) -> (..., 3, 3)."""
    products = (q.unsqueeze(-1) * q.unsqueeze(-2)).flatten(-2)
    identity = torch.eye(3, dtype=q.dtype, device=q.device)
    return identity + (products @ _like(_QUAT_PRODUCTS, q)).unflatten(-1, (3, 3))


def multiply_quat(a: Tensor, b: Tensor) -> Tensor:
    """The rotation b followed by a, of unit quaternions (w, x, y, z), (..., 4) both."""
    w, x, y, z = a.unbind(-1)
    u, i, j, k = b.unbind(-1)
    return torch.stack(
        (
            w * u - x * i - y * j - z * k,
            w * i + x * u + y * k - z * j,
            w * j - x * k + y * u + z * i,
            w * k + x * j - y * i + z * u,
        ),
        -1,
    )


def yaw_of(rotation: Tensor) -> Tensor:
    """Heading of the local x axis in the world's horizontal plane [rad]. (..., 3, 3) -> (...)."""
    return torch.atan2(rotation[..., 1, 0], rotation[..., 0, 0])


def yaw_matrix(yaw: Tensor) -> Tensor:
    """Rotation about the vertical. yaw (...) [rad] -> (..., 3, 3)."""
    return exp_so3(torch.stack((torch.zeros_like(yaw), torch.zeros_like(yaw), yaw), -1))


def plane_gradient(points: Tensor, heights: Tensor) -> Tensor:
    """Gradient (..., 2) along x and y of the plane through heights (..., k) at points (..., k, 2),
    not all on a line, by least squares."""
    x, y = (points - points.mean(-2, keepdim=True)).unbind(-1)
    xx = (x * x).sum(-1)
    xy = (x * y).sum(-1)
    yy = (y * y).sum(-1)
    xh = (x * heights).sum(-1)
    yh = (y * heights).sum(-1)
    # the normal equations; torch's solvers wait for a GPU
    along_x = yy * xh - xy * yh
    along_y = xx * yh - xy * xh
    return torch.stack((along_x, along_y), -1) / (xx * yy - xy * xy).unsqueeze(-1)


def levelled(gradient: Tensor) -> Tensor:
    """Smallest rotation (..., 3, 3) that turns the normal of a plane with gradient (..., 2) along x
    and y to the z axis."""
    steepness = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    # about the horizontal axis across the gradient
    across = torch.stack((-gradient[..., 1], gradient[..., 0]), -1)
    turn = across * torch.atan(steepness) / steepness.clamp(min=1e-9)
    return exp_so3(torch.nn.functional.pad(turn, (0, 1)))


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Angle of the rotation that takes a to b [rad], in [0, pi]. (..., 3, 3) twice -> (...)."""
    cosine = 0.5 * ((a * b).sum((-1, -2)) - 1.0)
    return torch.acos(cosine.clamp(-1.0, 1.0))
