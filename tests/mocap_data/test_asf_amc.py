"""ASF/AMC: small files with figures worked out by hand; CMU's recordings where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import mocap_data
from mocap_data.readers.asf_amc import bone_ends, find_asf, read_amc, read_asf
from mocap_data.readers.common import MissingOptions
from tests.refusals import refusal

# A thigh of 2 units straight down and a shin of 1 unit below it; one unit is 1 / 0.45 inch.
ASF = """# a comment
:version 1.10
:name VICON of
:units
  mass 1.0
  length 0.45
  angle deg
:documentation
   begin with anything :root that is no section
:root
   order TX TY TZ RX RY RZ
   axis XYZ
   position 0 0 0
   orientation 0 0 0
:bonedata
  begin
     id 1
     name thigh
     direction 0 -2 0
     length 2
     axis 0 0 0 XYZ
     dof rx ry rz
     limits (-160.0 20.0)
            (-70.0 70.0)
            (-60.0 70.0)
  end
  begin
     id 2
     name shin
     direction 0 -1 0
     length 1
     axis 90 0 0 XYZ
     dof rz
  end
:hierarchy
  begin
    root thigh
    thigh shin
  end
"""
AMC = """#!OML:ASF C:\\somewhere.ASF
:FULLY-SPECIFIED
:DEGREES
1
root 0 3 0 0 0 0
thigh 0 0 0
shin 0
2
root 1 3 0 0 90 0
thigh 90 0 0
shin 90
"""
UNIT = 0.0254 / 0.45  # [m]


@pytest.fixture
def amc(tmp_path: Path) -> Path:
    (tmp_path / "7.asf").write_text(ASF)
    path = tmp_path / "7_01.amc"
    path.write_text(AMC)
    return path


def test_by_hand(amc: Path) -> None:
    clip = mocap_data.read(amc)
    assert clip.names == ("root", "thigh", "shin")
    assert clip.parents == (-1, 0, 1)
    expected = (120.0, "7_01", "7_01.amc", "unknown")
    assert (clip.rate_hz, clip.name, clip.source, clip.licence) == expected
    assert clip.assumed == ("rate_hz", "up")
    assert mocap_data.read(amc, rate_hz=120.0, up="y").assumed == ()
    # Frame 1, the rest pose: root at height 3, knee at 1, ankle at 0. Y up to Z up: (x, y, z) ->
    # (z, x, y).
    expected = UNIT * np.array([[0, 0, 3], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_allclose(clip.positions[0], expected, atol=1e-15)
    # Frame 2. The root turns 90 degrees about y: Z to X. The thigh 90 degrees about x: down, -Y,
    # goes to -Z, and the root's turn takes that to -X: the knee is at (1 - 2, 3, 0).
    # The shin's own axes are turned 90 degrees about x (C): its z axis is C z = -Y of the world at
    # rest. So it turns 90 degrees about -Y, which leaves its direction, -Y, alone: it goes on like
    # the thigh, to (1 - 3, 3, 0).
    expected = UNIT * np.array([[0, 1, 3], [0, -1, 3], [0, -2, 3]])
    np.testing.assert_allclose(clip.positions[1], expected, atol=1e-15)


def test_orders_units_and_quotes(tmp_path: Path, amc: Path) -> None:
    """Radians, another order of the root's numbers, of rotations and of bones, a bone without dofs,
    names in quotes, CRLF."""
    text = (
        ASF.replace("angle deg", "angle rad")
        .replace("order TX TY TZ RX RY RZ", "order RY TZ TX TY")
        .replace("axis 90 0 0 XYZ", "axis 0 0 0 ZYX")
        .replace("dof rx ry rz", "")
        .replace("dof rz", "dof rx rz")
        .replace("name shin", 'name "shin"')
    )
    (tmp_path / "7.asf").write_bytes(text.replace("\n", "\r\n").encode())
    amc.write_text(f":RADIANS\n1\n# a comment\nshin {np.pi / 2} {np.pi / 2}\nroot 0 0 1 3\n")
    clip = mocap_data.read(amc, scale=1.0, up="z")
    # root at (1, 3, 0), the knee 2 below; the shin turns about fixed z first (down to +X), then
    # about x (which leaves +X)
    np.testing.assert_allclose(clip.positions[0], [[1, 3, 0], [1, 1, 0], [2, 1, 0]], atol=1e-15)


def test_root_orientation_turns_the_axes_of_its_angles(tmp_path: Path, amc: Path) -> None:
    (tmp_path / "7.asf").write_text(
        ASF.replace("orientation 0 0 0", "orientation 0 90 0").replace(
            "position 0 0 0", "position 0 0 5"
        )
    )
    amc.write_text(AMC[: AMC.index("2\nroot")].replace("root 0 3 0 0 0 0", "root 0 3 0 90 0 0"))
    clip = mocap_data.read(amc, scale=1.0, up="z")
    # C turns x to -z: 90 degrees about -z takes down, -Y, to -X; the position is added to what the
    # skeleton says
    np.testing.assert_allclose(clip.positions[0], [[0, 3, 5], [-2, 3, 5], [-3, 3, 5]], atol=1e-15)


def test_bone_rotations_by_another_path(amc: Path) -> None:
    """The ends of bones by R_b = R_parent C R C^-1 with scipy's matrices, at random angles."""
    skeleton = read_asf(amc.with_name("7.asf"))
    rows = np.random.default_rng(0).uniform(-180, 180, size=(5, 10))
    frames = [
        f"{t + 1}\nroot {' '.join(map(repr, map(float, r[:6])))}\n"
        f"thigh {r[6]} {r[7]} {r[8]}\nshin {r[9]}\n"
        for t, r in enumerate(rows)
    ]
    amc.write_text(":DEGREES\n" + "".join(frames))
    angles = read_amc(amc, skeleton)
    c = Rotation.from_euler("xyz", [90, 0, 0], degrees=True)
    root = Rotation.from_euler("xyz", rows[:, 3:6], degrees=True)
    thigh = root * Rotation.from_euler("xyz", rows[:, 6:9], degrees=True)
    shin = thigh * c * Rotation.from_euler("z", rows[:, 9:], degrees=True) * c.inv()
    knee = rows[:, :3] + thigh.apply([0, -2, 0])
    np.testing.assert_allclose(bone_ends(skeleton, angles)[:, 1], knee, atol=1e-12)
    result = bone_ends(skeleton, angles)[:, 2]
    np.testing.assert_allclose(result, knee + shin.apply([0, -1, 0]), atol=1e-12)


def test_the_skeleton_beside_a_motion(tmp_path: Path, amc: Path) -> None:
    assert find_asf(amc) == tmp_path / "7.asf"
    (tmp_path / "8.asf").write_text("")  # not the one
    assert find_asf(amc) == tmp_path / "7.asf"
    other = tmp_path / "walk.amc"
    other.write_text(AMC)
    with pytest.raises(MissingOptions, match="asf=") as error:
        mocap_data.read(other)
    assert error.value.options == ("asf",)
    np.testing.assert_array_equal(
        mocap_data.read(other, asf=tmp_path / "7.asf").positions, mocap_data.read(amc).positions
    )
    (tmp_path / "8.asf").rename(tmp_path / "walk.ASF")
    assert find_asf(other) == tmp_path / "walk.ASF"
    (tmp_path / "walk.ASF").unlink()
    assert find_asf(other) == tmp_path / "7.asf"  # the only one
    (tmp_path / "7.asf").unlink()
    refusal("7.asf or 7_01.asf", mocap_data.read, amc)
    refusal("asf=", mocap_data.read, amc, asf="none.asf")


# --- CMU's recordings
# -------------------------------------------------------------------------------------------------


def test_a_cmu_walk_equals_keypoints_made_by_others(shared: Path) -> None:
    """07_01 was exported as keypoints by another project: hips, knees, ankles and toes agree but
    for one constant shift."""
    ours = mocap_data.read(shared / "mocap/cmu_asfamc/07/07_01.amc")
    theirs = mocap_data.read(
        shared / "mocap/cmu_run_keypoints/07_01_cmu_worldpos.npz", scale=UNIT / 100
    )
    pairs = {"root": "Hips", "lowerback": "Spine", "upperback": "Spine1"}
    for side, word in (("l", "Left"), ("r", "Right")):
        pairs |= {
            f"{side}hipjoint": f"{word}UpLeg",
            f"{side}femur": f"{word}Leg",
            f"{side}tibia": f"{word}Foot",
        }
        pairs |= {f"{side}foot": f"{word}ToeBase", f"{side}toes": f"{word}ToeBase_end"}
    frames = ours.num_frames - 1
    mine = ours.select(list(pairs)).positions[:frames]
    # it begins with the rest pose
    published = theirs.select(list(pairs.values())).positions[1 : 1 + frames]
    shift = (mine - published).mean(axis=(0, 1))
    assert np.linalg.norm(shift) < 0.005
    np.testing.assert_allclose(mine, published + shift, atol=0.005)  # a keyframe's rounding
