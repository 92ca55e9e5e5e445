"""Identities over random rotations: generic, near the identity, near half a turn, in batches."""

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
    expected = rot.multiply(a, rot.multiply(b, c))
    np.testing.assert_allclose(rot.multiply(rot.multiply(a, b), c), expected, atol=1e-14)
    expected = np.broadcast_to(rot.IDENTITY, a.shape)
    np.testing.assert_allclose(rot.multiply(a, rot.conjugate(a)), expected, atol=1e-15)
    np.testing.assert_allclose(rot.multiply(a, rot.IDENTITY), a, atol=0)
    result = rot.rotate(rot.multiply(a, b), v)
    np.testing.assert_allclose(result, rot.rotate(a, rot.rotate(b, v)), atol=1e-13)
    np.testing.assert_allclose(rot.rotate(rot.conjugate(a), rot.rotate(a, v)), v, atol=1e-14)
    expected = np.einsum("...ij,...j->...i", rot.to_matrix(a), v)
    np.testing.assert_allclose(rot.rotate(a, v), expected, atol=1e-14)
    reached = rot.multiply(a, rot.exp(rot.difference(a, b)))  # b or -b, the same rotation
    np.testing.assert_allclose(rot.to_matrix(reached), rot.to_matrix(b), atol=1e-13)


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
    heading = to_scipy(a).as_matrix()[..., :2, 0]
    np.testing.assert_allclose(rot.yaw(a), np.arctan2(*heading.T[::-1]), atol=1e-12)
    expected = (to_scipy(a) * to_scipy(b)).as_matrix()
    np.testing.assert_allclose(rot.to_matrix(rot.multiply(a, b)), expected, atol=1e-14)
    expected = (to_scipy(a).inv() * to_scipy(b)).magnitude()
    np.testing.assert_allclose(rot.angle(a, b), expected, atol=1e-12)


@pytest.mark.parametrize("order", ["ZXY", "ZYX", "XYZ", "YXY", "X", "ZY"])
def test_euler_parity_with_scipy(order: str) -> None:
    angles = np.random.default_rng(0).uniform(-4, 4, (6, 5, len(order)))
    ours = rot.to_matrix(rot.from_euler(order, angles)).reshape(-1, 3, 3)
    theirs = Rotation.from_euler(order, angles.reshape(-1, len(order))).as_matrix()
    np.testing.assert_allclose(ours, theirs, atol=1e-14)


def test_quarter_turns_by_hand() -> None:
    # a quarter turn about Z takes X to Y; then "ZX" turns about the new X, so Z ends up at -(new Y)
    # = X
    z = rot.from_euler("Z", [np.pi / 2])
    np.testing.assert_allclose(rot.rotate(z, [1.0, 0.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-15)
    zx = rot.from_euler("ZX", [np.pi / 2, np.pi / 2])
    np.testing.assert_allclose(rot.rotate(zx, [0.0, 0.0, 1.0]), [1.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(rot.log(z), [0.0, 0.0, np.pi / 2], atol=1e-15)


def test_difference_is_in_the_body_frame() -> None:
    # turned a quarter about Z, then rolling about the body's own X: the difference is along X, not
    # Y
    a = rot.from_euler("Z", [np.pi / 2])
    b = rot.multiply(a, rot.exp([0.1, 0.0, 0.0]))
    np.testing.assert_allclose(rot.difference(a, b), [0.1, 0.0, 0.0], atol=1e-15)


def test_make_continuous() -> None:
    smooth = rot.from_axis_angle(np.array([0.0, 0.0, 1.0]), np.linspace(0, 6 * np.pi, 200))
    flipped = smooth * np.random.default_rng(0).choice([-1.0, 1.0], (200, 1))
    flipped[0] = smooth[0]
    np.testing.assert_array_equal(rot.make_continuous(flipped), smooth)
    batch = np.stack([flipped, -flipped], axis=1)  # (T, 2, 4)
    np.testing.assert_array_equal(rot.make_continuous(batch)[:, 1], -smooth)


def tumbling(times: np.ndarray) -> np.ndarray:
    """A known smooth rotation at times (T,): (T, 4)."""
    angles = [2.0 * np.sin(1.3 * times), 0.5 * np.cos(2.0 * times), 0.7 * np.sin(times + 0.3)]
    return rot.from_euler("ZYX", np.stack(angles, axis=-1))


def test_squad_goes_through_its_knots_and_keeps_the_hemisphere() -> None:
    times = np.sort(np.random.default_rng(0).uniform(0, 5, 30))
    knots = tumbling(times)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (30, 1))
    result = rot.angle(rot.squad(signs * knots, times, times), knots)
    np.testing.assert_allclose(result, 0.0, atol=1e-7)
    fine = rot.squad(signs * knots, times, np.linspace(times[0], times[-1], 2000))
    assert (np.sum(fine[1:] * fine[:-1], axis=-1) > 0.9).all()
    np.testing.assert_allclose(np.linalg.norm(fine, axis=-1), 1.0, atol=1e-14)
    np.testing.assert_array_equal(fine[0], signs[0] * knots[0])


def test_squad_keeps_a_steady_turn_exactly() -> None:
    """Constant angular velocity, over many turns and at uneven times: to 1e-12, ends as well."""
    rng = np.random.default_rng(0)
    velocity = np.array([0.4, -1.1, 0.8])
    start = rot.exp([0.3, 2.0, -0.5])

    def steady(times: np.ndarray) -> np.ndarray:
        return rot.multiply(start, rot.exp(times[:, None] * velocity))

    # turns below pi
    for times in (np.arange(12.0), np.cumsum(rng.uniform(0.3, 2.0, 12)), np.array([0.0, 1.5])):
        new = rng.uniform(times[0], times[-1], 200)
        result = rot.squad(steady(times), times, new)
        exact = steady(new)
        got = result * np.sign(np.sum(result * exact, axis=-1, keepdims=True))
        np.testing.assert_allclose(got, exact, atol=1e-12)


def test_squad_converges_to_the_motion() -> None:
    """Errors of third order: knots twice as dense, errors an eighth, at the ends as well, even at
    uneven times."""
    new = np.linspace(0.0, 5.0, 1001)
    rng = np.random.default_rng(3)
    for uneven in (0.0, 0.3):
        errors = []
        for count in (51, 101, 201):
            times = np.linspace(0.0, 5.0, count)
            times[1:-1] += uneven * rng.uniform(-1, 1, count - 2) * (5.0 / count)
            errors.append(rot.angle(rot.squad(tumbling(times), times, new), tumbling(new)).max())
        assert errors[0] > 5.0 * errors[1] > 25.0 * errors[2]
        assert errors[2] < 5e-5
