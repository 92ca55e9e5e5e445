"""Rotations: identities over random input in several regimes, against MuJoCo and the matrix
exponential."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from npmp.core import geometry

# rotation angles [rad]; the series ends at 1e-3
REGIMES = [0.0, 1e-9, 1e-5, 9.9e-4, 1.1e-3, 0.02, 1.0, 3.0]


def vectors(
    angle: float, shape: tuple[int, ...] = (64,), dtype: torch.dtype = torch.float64
) -> Tensor:
    """Rotation vectors of one length in random directions."""
    v = torch.randn((*shape, 3), generator=torch.Generator().manual_seed(0), dtype=dtype)
    return angle * v / v.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("angle", REGIMES)
def test_exp_is_the_matrix_exponential_of_the_cross_product(angle: float) -> None:
    w = vectors(angle)
    expected = torch.linalg.matrix_exp(geometry.skew(w))
    torch.testing.assert_close(geometry.exp_so3(w), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("angle", REGIMES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_log_undoes_exp(angle: float, shape: tuple[int, ...]) -> None:
    w = vectors(angle, shape)
    rotation = geometry.exp_so3(w)
    assert rotation.shape == (*shape, 3, 3)
    torch.testing.assert_close(geometry.log_so3(rotation), w, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("angle", REGIMES)
def test_single_precision_keeps_six_digits_of_a_control_steps_turn(angle: float) -> None:
    w = vectors(angle, dtype=torch.float32)
    # log near half a turn loses what the sine loses; a control step turns by far less
    tolerance = 2e-6 if angle <= 1.0 else 2e-5
    torch.testing.assert_close(geometry.log_so3(geometry.exp_so3(w)), w, atol=tolerance, rtol=0)


def test_exp_undoes_log_and_gives_rotations() -> None:
    rotation = geometry.exp_so3(vectors(2.0))
    result = geometry.exp_so3(geometry.log_so3(rotation))
    torch.testing.assert_close(result, rotation, atol=1e-12, rtol=0)
    identity = torch.eye(3, dtype=torch.float64).expand(64, 3, 3)
    torch.testing.assert_close(rotation @ rotation.transpose(-1, -2), identity, atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(64, dtype=torch.float64))


@pytest.mark.parametrize("angle", [0.0, 1e-5, 0.5])
def test_gradients_of_exp_and_log_are_right_down_to_zero(angle: float) -> None:
    w = vectors(angle, (4,)).requires_grad_()
    assert torch.autograd.gradcheck(geometry.exp_so3, (w,))
    assert torch.autograd.gradcheck(lambda v: geometry.log_so3(geometry.exp_so3(v)), (w,))


def test_gradients_at_rest_are_finite_in_single_precision() -> None:
    w = torch.zeros(3, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(geometry.exp_so3, w)  # (3, 3, 3): d R_ij / d w_k
    for k, axis in enumerate(torch.eye(3)):
        torch.testing.assert_close(jacobian[..., k], geometry.skew(axis))
    rotation = torch.eye(3, requires_grad=True)
    geometry.log_so3(rotation).sum().backward()
    assert rotation.grad is not None and rotation.grad.isfinite().all()


def test_quaternions_give_mujocos_matrices() -> None:
    quats = np.random.default_rng(0).normal(size=(50, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    expected = np.zeros((50, 9))
    for row, quat in zip(expected, quats, strict=True):
        mujoco.mju_quat2Mat(row, quat)
    result = geometry.matrix_from_quat(torch.from_numpy(quats))
    np.testing.assert_allclose(result.numpy(), expected.reshape(50, 3, 3), atol=1e-14)


def test_frames_and_yaw() -> None:
    rotation, v = geometry.exp_so3(vectors(1.1)), vectors(2.5).flip(0)
    torch.testing.assert_close(geometry.to_local(rotation, geometry.to_world(rotation, v)), v)
    # a quarter turn about the vertical takes x to y
    quarter = geometry.yaw_matrix(torch.tensor(math.pi / 2))
    result = geometry.to_world(quarter, torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(result, torch.tensor([0.0, 1.0, 0.0]))
    yaw = torch.linspace(-3.0, 3.0, 7)
    torch.testing.assert_close(geometry.yaw_of(geometry.yaw_matrix(yaw)), yaw)


def test_angle_between_is_the_length_of_the_relative_rotation_vector() -> None:
    a, w = geometry.exp_so3(vectors(1.0)), vectors(0.4).flip(0)
    result = geometry.angle_between(a, a @ geometry.exp_so3(w))
    torch.testing.assert_close(result, torch.full((64,), 0.4, dtype=torch.float64))
    assert geometry.angle_between(a, a).max() < 1e-6


def test_products_of_quaternions_are_products_of_rotations() -> None:
    a, b = torch.nn.functional.normalize(
        torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    product = geometry.matrix_from_quat(geometry.multiply_quat(a, b))
    torch.testing.assert_close(product, geometry.matrix_from_quat(a) @ geometry.matrix_from_quat(b))
