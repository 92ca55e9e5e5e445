"""OP3: equal to the model it was made from, mirrored left to right, standing, and about as large as
its links."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from npmp import robots
from tests.robots.models import at, random_qpos, same_bodies

OP3 = robots.load("op3")
MODEL = OP3.model()
FOOT_SPHERES = tuple(
    f"{side}_{end}_{edge}"
    for side in "lr"
    for end in ("heel", "toe")
    for edge in ("inner", "outer")
)


# --- against Menagerie ---


@pytest.fixture(scope="module")
def theirs(shared: Path) -> mujoco.MjModel:
    path = shared / "robots" / "menagerie" / "robotis_op3" / "op3.xml"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return mujoco.MjModel.from_xml_path(str(path))


def test_names_are_menageries(theirs: mujoco.MjModel) -> None:
    assert OP3.body_names == tuple(theirs.body(i).name for i in range(1, theirs.nbody))
    assert OP3.joint_names == tuple(theirs.joint(i).name for i in range(1, theirs.njnt))
    expected = [theirs.actuator(i).name for i in range(theirs.nu)]
    assert [f"{name}_act" for name in OP3.joint_names] == expected


def test_kinematics_and_inertia_are_menageries(theirs: mujoco.MjModel) -> None:
    assert MODEL.body_mass.sum() == pytest.approx(theirs.body_mass.sum(), rel=1e-12)
    same_bodies(MODEL, theirs, poses=50)


def test_sole_is_menageries(theirs: mujoco.MjModel) -> None:
    """Their sole: two crossed boxes. Ours: the corners' spheres reach its length and width and its
    plane."""
    for side, foot in (("l", 0), ("r", 1)):
        body = theirs.body(f"{side}_ank_roll_link").id
        box = theirs.geom_type == mujoco.mjtGeom.mjGEOM_BOX
        boxes = np.flatnonzero((theirs.geom_bodyid == body) & box).tolist()
        assert len(boxes) == 2
        lowest = min(theirs.geom_pos[g, 2] - theirs.geom_size[g, 2] for g in boxes)
        points = OP3.foot_points[foot]
        np.testing.assert_allclose(points[:, 2] - OP3.foot_radius, lowest, atol=1e-12)
        for axis in (0, 1):
            low = min(theirs.geom_pos[g, axis] - theirs.geom_size[g, axis] for g in boxes)
            high = max(theirs.geom_pos[g, axis] + theirs.geom_size[g, axis] for g in boxes)
            assert points[:, axis].min() - OP3.foot_radius == pytest.approx(low, abs=1e-3)
            assert points[:, axis].max() + OP3.foot_radius == pytest.approx(high, abs=1e-3)


# --- figures ---


def test_home_height_by_hand() -> None:
    """Thigh 0.11015 and shank 0.11 m, each leaning by 0.35; hips 0.0285 below the trunk, soles
    0.0305 below the ankles."""
    expected = (0.11015 + 0.11) * np.cos(0.35) + 0.0285 + 0.0305
    assert OP3.home_qpos[2] == pytest.approx(expected, abs=1e-9)


def test_foot_points_are_the_spheres() -> None:
    data = at(MODEL, random_qpos(np.random.default_rng(1), 20))
    for foot, points in zip(OP3.foot_bodies, OP3.foot_points, strict=True):
        body = data.body(foot)
        stated = body.xpos + points @ body.xmat.reshape(3, 3).T
        spheres = np.array([data.geom(name).xpos for name in FOOT_SPHERES if name[0] == foot[0]])
        np.testing.assert_allclose(stated, spheres, atol=1e-12)
        assert all(MODEL.geom(name).size[0] == OP3.foot_radius for name in FOOT_SPHERES)


# --- mirror ---


def test_mirror_changes_every_sign_but_the_nod() -> None:
    expected = [1.0 if name == "head_tilt" else -1.0 for name in OP3.joint_names]
    np.testing.assert_array_equal(OP3.symmetries["left_right"].joint_sign, expected)


# --- markers ---


def test_hips_and_ankles_are_where_axes_meet() -> None:
    """No hip joint moves the hip's marker, no ankle joint the ankle's; knee markers lie on the
    knee's axis."""
    rng = np.random.default_rng(9)
    for _ in range(10):
        data = at(MODEL, random_qpos(rng, 20))
        for side in "lr":
            for marker, joints in (
                ("hip", ("hip_yaw", "hip_roll", "hip_pitch")),
                ("knee", ("knee",)),
                ("foot", ("ank_pitch", "ank_roll")),
            ):
                entry = OP3.markers[f"{side.upper()}_{marker}"]
                body = data.body(entry.body)
                point = body.xpos + body.xmat.reshape(3, 3) @ entry.position
                for name in joints:
                    joint = data.joint(f"{side}_{name}")
                    # the yaw axis passes 0.1 mm behind the other two, so at a half turn 0.2 mm
                    result = np.cross(point - joint.xanchor, joint.xaxis)
                    np.testing.assert_allclose(result, 0, atol=2.1e-4)
