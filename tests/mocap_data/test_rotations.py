"""Identities over random rotations: generic, near the identity, near half a turn, and in batches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from mocap_data import rotations as rot

SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 4), (0,)]
REGIMES = ["generic", "tiny", "identity", "half_turn"]


def random_vectors(regime: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Rotation vectors (*shape, 3) whose angle is anything, about 1e-9, 0, or just below pi."""
    rng = np.random.default_rng([seed, REGIMES.index(regime), *shape])
    axis = rng.normal(size=(*shape, 3))
    axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
    size = {
        "generic": rng.uniform(0.01, 3.0, (*shape, 1)),
        "tiny": 1e-9,
        "identity": 0.0,
        "half_turn": np.pi - 1e-6,
    }
    return axis * size[regime]


def to_scipy(q: np.ndarray) -> Rotation:
    return Rotation.from_quat(q.reshape(-1, 4)[:, [1, 2, 3, 0]])


cases = pytest.mark.parametrize(
    ("regime", "shape"), [(regime, shape) for regime in REGIMES for shape in SHAPES]
)


@cases
def test_exp_log_recover_each_other(regime: str, shape: tuple[int, ...]) -> None:
    vector = random_vectors(regime, shape)
    q = rot.exp(vector)
    assert q.shape == (*shape, 4)
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), 1.0, atol=1e-14)
    np.testing.assert_allclose(rot.log(q), vector, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(rot.log(-q), vector, rtol=1e-9, atol=1e-15)  # the same rotation


@cases
def test_group(regime: str, shape: tuple[int, ...]) -> None:
    a, b, c = (rot.exp(random_vectors(regime, shape, seed)) for seed in range(3))
    v = random_vectors("generic", shape, 3)
    np.testing.assert_allclose(
        rot.multiply(rot.multiply(a, b), c), rot.multiply(a, rot.multiply(b, c)), atol=1e-14
    )
    np.testing.assert_allclose(
        rot.multiply(a, rot.conjugate(a)), np.broadcast_to(rot.IDENTITY, a.shape), atol=1e-15
    )
    np.testing.assert_allclose(rot.multiply(a, rot.IDENTITY), a, atol=0)
    np.testing.assert_allclose(rot.rotate(rot.multiply(a, b), v), rot.rotate(a, rot.rotate(b, v)), atol=1e-13)
    np.testing.assert_allclose(rot.rotate_inverse(a, rot.rotate(a, v)), v, atol=1e-14)
    np.testing.assert_allclose(
        rot.rotate(a, v), np.einsum("...ij,...j->...i", rot.to_matrix(a), v), atol=1e-14
    )
    reached = rot.multiply(a, rot.exp(rot.difference(a, b)))  # b or -b, the same rotation
    np.testing.assert_allclose(rot.to_matrix(reached), rot.to_matrix(b), atol=1e-13)


@cases
def test_matrix_recovers_quaternion(regime: str, shape: tuple[int, ...]) -> None:
    q = rot.exp(random_vectors(regime, shape))  # w >= 0
    np.testing.assert_allclose(rot.from_matrix(rot.to_matrix(q)), q, atol=1e-12)


@pytest.mark.parametrize("axis", range(3))
def test_matrix_of_exact_half_turns(axis: int) -> None:
    q = np.zeros(4)
    q[1 + axis] = 1.0
    matrix = -np.eye(3)
    matrix[axis, axis] = 1.0
    np.testing.assert_array_equal(rot.to_matrix(q), matrix)
    np.testing.assert_array_equal(np.abs(rot.from_matrix(matrix)), q)


@pytest.mark.parametrize("regime", REGIMES)
def test_parity_with_scipy(regime: str) -> None:
    shape = (50,)
    a, b = (rot.exp(random_vectors(regime, shape, seed)) for seed in (0, 1))
    v = random_vectors("generic", shape, 2)
    np.testing.assert_allclose(rot.to_matrix(a), to_scipy(a).as_matrix(), atol=1e-14)
    np.testing.assert_allclose(rot.rotate(a, v), to_scipy(a).apply(v), atol=1e-14)
    np.testing.assert_allclose(
        rot.to_matrix(rot.multiply(a, b)), (to_scipy(a) * to_scipy(b)).as_matrix(), atol=1e-14
    )
    np.testing.assert_allclose(rot.angle(a, b), (to_scipy(a).inv() * to_scipy(b)).magnitude(), atol=1e-12)


@pytest.mark.parametrize("order", ["ZXY", "ZYX", "XYZ", "YXY", "X", "ZY"])
def test_euler_parity_with_scipy(order: str) -> None:
    angles = np.random.default_rng(0).uniform(-4, 4, (6, 5, len(order)))
    ours = rot.to_matrix(rot.from_euler(order, angles)).reshape(-1, 3, 3)
    theirs = Rotation.from_euler(order, angles.reshape(-1, len(order))).as_matrix()
    np.testing.assert_allclose(ours, theirs, atol=1e-14)


def test_quarter_turns_by_hand() -> None:
    # a quarter turn about Z takes X to Y; then "ZX" turns about the new X, so Z ends up at -(new Y) = X
    z = rot.from_euler("Z", [np.pi / 2])
    np.testing.assert_allclose(rot.rotate(z, [1.0, 0.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-15)
    zx = rot.from_euler("ZX", [np.pi / 2, np.pi / 2])
    np.testing.assert_allclose(rot.rotate(zx, [0.0, 0.0, 1.0]), [1.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(rot.log(z), [0.0, 0.0, np.pi / 2], atol=1e-15)


def test_difference_is_in_the_body_frame() -> None:
    # turned a quarter about Z, then rolling about the body's own X: the difference is along X, not Y
    a = rot.from_euler("Z", [np.pi / 2])
    b = rot.multiply(a, rot.exp([0.1, 0.0, 0.0]))
    np.testing.assert_allclose(rot.difference(a, b), [0.1, 0.0, 0.0], atol=1e-15)


def test_slerp() -> None:
    a, b = (rot.exp(random_vectors("generic", (20,), seed)) for seed in (0, 1))
    np.testing.assert_allclose(rot.angle(rot.slerp(a, b, 0.0), a), 0.0, atol=1e-7)
    np.testing.assert_allclose(rot.angle(rot.slerp(a, b, 1.0), b), 0.0, atol=1e-7)
    t = np.linspace(0, 1, 20)
    np.testing.assert_allclose(rot.angle(a, rot.slerp(a, b, t)), t * rot.angle(a, b), atol=1e-12)
    # -b is the same rotation as b
    np.testing.assert_allclose(rot.slerp(a, -b, t), rot.slerp(a, b, t), atol=1e-12)


def test_make_continuous() -> None:
    angle = np.linspace(0, 6 * np.pi, 200)
    smooth = rot.from_axis_angle(np.array([0.0, 0.0, 1.0]), angle)
    flipped = smooth * np.random.default_rng(0).choice([-1.0, 1.0], (200, 1))
    flipped[0] = smooth[0]
    np.testing.assert_array_equal(rot.make_continuous(flipped), smooth)
    batch = np.stack([flipped, -flipped], axis=0)  # (2, T, 4): time is axis 1
    np.testing.assert_array_equal(rot.make_continuous(batch, axis=1)[1], -smooth)


def test_bad_calls() -> None:
    with pytest.raises(ValueError, match="length 0"):
        rot.normalize(np.zeros(4))
    with pytest.raises(ValueError, match="letters"):
        rot.from_euler("xyz", np.zeros(3))
    with pytest.raises(ValueError, match="needs 3 angles"):
        rot.from_euler("XYZ", np.zeros(2))
