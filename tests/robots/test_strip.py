"""Models whose root, bodies, joints or inertias another simulator takes otherwise."""

from __future__ import annotations

import itertools
from pathlib import Path

import mujoco
import numpy as np
import pytest

from npmp.robots.model import ROOT_JOINT, read_spec
from npmp.robots.proposal import propose
from npmp.robots.strip import strip
from tests.refusals import refusal
from tests.robots.models import at, dog, random_qpos, same_bodies

# anchors off the origin, frames, damping, and children of a crowded body beside an uncrowded one
CROWDED = """
<mujoco>
  <compiler angle="degree"/>
  <default>
    <joint damping="0.3" armature="0.01"/>
    <default class="limb"><geom type="capsule" size="0.03" fromto="0 0 0 0.02 0 -0.2"/></default>
  </default>
  <worldbody>
    <body name="torso">
      <freejoint name="root"/>
      <geom type="box" size="0.1 0.1 0.1"/>
      <frame pos="0 0.1 -0.1" euler="20 0 0">
        <body name="left_hip" pos="0 0.02 0" euler="0 10 0" childclass="limb">
          <joint name="left_yaw" axis="0 0 1" pos="0.01 0 0" range="-30 30"/>
          <joint name="left_roll" axis="1 0 0" pos="0 0.02 0.01"/>
          <joint name="left_pitch" axis="0 1 0"/>
          <geom/>
          <site name="left_mark" pos="0 0 -0.1"/>
          <body name="left_shin" pos="0.02 0 -0.2">
            <joint name="left_knee" axis="0 1 0"/>
            <joint name="left_twist" axis="0 0 1"/>
            <geom/>
          </body>
        </body>
      </frame>
      <body name="head" pos="0 0 0.1"><joint name="nod" axis="0 1 0"/><geom size="0.05"/></body>
      <body name="right_hip" pos="0 -0.1 -0.1">
        <inertial pos="0 0 -0.1" mass="1" diaginertia="0.01 0.01 0.002"/>
        <joint name="right_yaw" axis="0 0 1"/>
        <joint name="right_roll" axis="1 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
SIX = {
    "x": '<joint type="slide" axis="1 0 0"/>',
    "y": '<joint type="slide" axis="0 1 0"/>',
    "z": '<joint type="slide" axis="0 0 1"/>',
    "ball": '<joint type="ball"/>',
}


def stripped(folder: Path, mjcf: str) -> tuple[mujoco.MjModel, dict[str, str]]:
    """The compiled model, and what was changed by topic."""
    path = folder / "model.xml"
    path.write_text(mjcf)
    spec = read_spec(path)
    changes = strip(spec, path)
    return spec.compile(), {topic: value for topic, value, _ in changes}


def joint_names(model: mujoco.MjModel) -> list[str]:
    return [model.joint(i).name for i in range(model.njnt)]


def test_bodies_with_several_hinges_move_as_before(tmp_path: Path) -> None:
    """The same places, inertia and accelerations from the same positions and velocities."""
    before = mujoco.MjModel.from_xml_string(CROWDED)
    after, changes = stripped(tmp_path, CROWDED)
    assert changes == {"split bodies": "left_hip, right_hip, left_shin"}
    assert max(after.body_jntnum) == 1
    assert joint_names(after) == joint_names(before)
    assert after.body("left_yaw_link").mass[0] < 1e-9
    assert after.body_mass.sum() == pytest.approx(before.body_mass.sum(), rel=1e-9)
    np.testing.assert_allclose(after.jnt_range, before.jnt_range)
    np.testing.assert_allclose(after.jnt_limited, before.jnt_limited)
    same_bodies(after, before, poses=5)
    # shapes of neighbours collide in neither
    for model in (before, after):
        model.opt.disableflags = mujoco.mjtDisableBit.mjDSBL_CONTACT
    rng = np.random.default_rng(0)
    for _ in range(5):
        qpos = random_qpos(rng, before.nq - 7)
        qvel = rng.normal(size=before.nv)
        there = at(before, qpos, qvel)
        here = at(after, qpos, qvel)
        np.testing.assert_allclose(here.qacc, there.qacc, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(
            here.site("left_mark").xpos, there.site("left_mark").xpos, atol=1e-9
        )


def test_backlash_is_locked(tmp_path: Path) -> None:
    loose = '<joint name="slack" axis="0 1 0" range="-0.5 0.5"/>'
    mjcf = dog(meshes=False).replace('angle="radian"', 'angle="degree"')
    mjcf = mjcf.replace("<site", f"<body><geom mass='0.1' size='0.01'/>{loose}</body><site", 1)
    model, changes = stripped(tmp_path, mjcf)
    assert changes["locked joints"] == "slack"
    assert "slack" not in joint_names(model) and model.njnt == 13
    # where nothing has an actuator no joint is passive
    undriven = mjcf.split("<actuator>")[0] + "</mujoco>"
    model, changes = stripped(tmp_path, undriven)
    assert "slack" in joint_names(model)


@pytest.mark.parametrize("order", list(itertools.permutations(SIX)))
def test_slides_and_a_ball_are_a_floating_base(tmp_path: Path, order: tuple[str, ...]) -> None:
    joints = "".join(SIX[each] for each in order)
    model, changes = stripped(tmp_path, dog(meshes=False).replace("<freejoint/>", joints))
    assert (model.nq, model.nv, model.joint(0).name) == (19, 18, ROOT_JOINT)
    assert changes["root"] == "a free joint"


def test_six_single_joints_are_a_floating_base(tmp_path: Path) -> None:
    """On one body, or on a chain of bodies without shapes; a keyframe stays the home pose."""
    hinges = "".join(f'<joint axis="{axis}"/>' for axis in ("0 0 1", "0 1 0", "1 0 0"))
    six = SIX["x"] + SIX["y"] + SIX["z"] + hinges
    mjcf = dog(meshes=False).replace("<freejoint/>", six)
    mjcf = mjcf.replace("0 0 0.3 1 0 0 0 ", "0 0 0.3 0 0 0 ")
    (tmp_path / "model.xml").write_text(mjcf)
    result = propose(tmp_path / "model.xml")
    np.testing.assert_allclose(result.robot.home_joints, [0, 0.8, -1.6] * 4)
    assert ("home", "the model's keyframe") in [(f.topic, f.value) for f in result.findings]

    opened = f'<body name="slider">{SIX["x"]}<body>{SIX["y"]}{SIX["z"]}{SIX["ball"]}'
    nested = dog(meshes=False, key=False).replace("<freejoint/>", "")
    start = nested.index('<body name="trunk"')
    stop = nested.index("</worldbody>")
    nested = f"{nested[:start]}{opened}{nested[start:stop]}</body></body>{nested[stop:]}"
    model, _ = stripped(tmp_path, nested)
    assert model.body(1).name == "slider" and model.nv == 18


def test_planar_robots_are_named(tmp_path: Path) -> None:
    planar = SIX["x"] + SIX["z"] + '<joint axis="0 1 0"/>'
    (tmp_path / "model.xml").write_text(dog(meshes=False).replace("<freejoint/>", planar))
    message = refusal("planar", propose, tmp_path / "model.xml")
    assert "slide along X, slide along Z, hinge along Y" in message


def test_a_trunk_of_the_worlds_shapes_is_freed(tmp_path: Path) -> None:
    """As importers of URDF save it: legs beside the trunk's shapes, floor and walls beyond."""
    mjcf = dog(meshes=False)
    start = mjcf.index('<body name="trunk"')
    stop = mjcf.index("</worldbody>")
    legs = mjcf[mjcf.index('<body name="FR_hip"') : stop].rstrip().removesuffix("</body>")
    legs = legs.replace('_hip" pos', '_hip" childclass="dog" pos')
    world = '<geom type="box" size="3 3 0.1" pos="0 0 -1"/><geom size="0.3" pos="4 0 0"/>'
    world += '<geom name="shell" type="box" size="0.15 0.06 0.05" mass="6"/>'
    fixed = mjcf[:start] + world + legs + mjcf[stop:]
    (tmp_path / "model.xml").write_text(fixed)
    result = propose(tmp_path / "model.xml", name="dog")
    assert result.robot.body_names[0] == "trunk"
    assert result.robot.model().body("trunk").mass[0] == pytest.approx(6.0)
    # 6 + 4 legs of 1.8 kg
    assert result.robot.model().body_mass.sum() == pytest.approx(13.2)
    (value,) = (f.value for f in result.findings if f.topic == "root")
    assert "1 shapes of the world" in value
    assert all(check.passed for check in result.checks), result.checks

    (tmp_path / "model.xml").write_text(fixed.replace(world, ""))
    refusal("the trunk is fixed to the world", propose, tmp_path / "model.xml")


def test_inertia_no_body_has_is_balanced(tmp_path: Path) -> None:
    """1 + 1 < 5: each becomes their mean, 7/3. As MuJoCo's balanceinertia."""
    thin = '<body name="camera"><inertial pos="0 0 0" mass="1" diaginertia="{}"/></body><site'
    mjcf = dog(meshes=False).replace("<site", thin.format("1 5 1"), 1)
    model, changes = stripped(tmp_path, mjcf)
    np.testing.assert_allclose(model.body("camera").inertia, 7 / 3)
    assert changes["inertia"] == "camera: 1, 1, 5 kg m2, now 2.33 each"
    _, changes = stripped(tmp_path, mjcf.replace("1 5 1", "1 2 1"))
    assert "inertia" not in changes


def test_meshes_that_are_none_are_left_out(tmp_path: Path) -> None:
    """A file that MuJoCo has no decoder for: gone where it only shows, named where it collides."""
    (tmp_path / "shell.dae").write_text("<COLLADA/>")
    asset = '<asset><mesh name="look" file="../shell.dae"/>'
    mjcf = dog(meshes=False).replace("<asset>", asset)
    seen = '<geom class="visual" mesh="look"/><site'
    model, changes = stripped(tmp_path, mjcf.replace("<site", seen, 1))
    assert model.nmesh == 0 and "shell.dae" in changes["left out"]
    (tmp_path / "model.xml").write_text(mjcf.replace("<site", seen.replace("visual", "dog"), 1))
    spec = read_spec(tmp_path / "model.xml")
    refusal("'look' .*shell.dae", strip, spec, tmp_path / "model.xml")
