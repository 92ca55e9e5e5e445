"""Small models of other people's making: a dog in Unitree's layout, and a person. Primitives only,
figures of our own."""

from __future__ import annotations

import mujoco
import numpy as np

from npmp.robots import Robot

LEGS = ("FR", "FL", "RR", "RL")  # Unitree's order


def dog(
    *,
    actuators: str = "motor",
    meshes: bool = True,
    key: bool = True,
    facing: float = 1.0,
    shift: float = 0.0,
    turned: bool = False,
    ranges: bool = True,
) -> str:
    """A quadruped: feet are spheres on calves, visual meshes are missing, the base is yawed by 180
    degrees at qpos0.

    actuators: motor (gear 2, control limits), position (gear 1) or none. facing: -1 puts the front
    legs at -X. shift [m]: moves one hip along X, so that the mirror is only near. turned: every
    thigh's frame is rolled by 90 degrees.
    """
    legs = "".join(
        _leg(name, facing=facing, shift=shift, turned=turned, meshes=meshes, ranges=ranges)
        for name in LEGS
    )
    joints = [f"{leg}_{part}" for leg in LEGS for part in ("hip", "thigh", "calf")]
    rows = {
        "motor": '<motor name="{0}" joint="{0}_joint" gear="2" ctrlrange="-10 10"/>',
        "position": '<general name="{0}" joint="{0}_joint" gainprm="60" biasprm="0 -60 -1.5" '
        'biastype="affine" forcerange="-25 25" ctrlrange="-3 3"/>',
        "none": "",
    }[actuators]
    pose = "0 0 0.3 1 0 0 0 " + "0 0.8 -1.6 " * 4
    asset = '<mesh name="shell" file="shell.stl"/><mesh file="calf.obj"/>' if meshes else ""
    look = '<geom class="visual" mesh="shell"/>' if meshes else ""
    force = f'<actuatorfrc actuator="{joints[0]}"/>' if actuators != "none" else ""
    return f"""
<mujoco model="Dog 1">
  <compiler angle="radian" meshdir="assets" autolimits="true"/>
  <option cone="elliptic" impratio="100" timestep="0.002"/>
  <default>
    <default class="dog">
      <joint axis="0 1 0" damping="1" armature="0.01"/>
      <geom friction="0.6" condim="1" margin="0.001"/>
      <default class="visual">
        <geom type="mesh" contype="0" conaffinity="0" group="2" mass="0"/>
      </default>
      <default class="collision">
        <geom group="3" type="capsule"/>
        <default class="foot">
          <geom type="sphere" size="0.02" pos="0 0 -0.2" condim="6" solimp="0.015 1 0.03"
            friction="0.8 0.02 0.01"/>
        </default>
      </default>
    </default>
  </default>
  <asset>
    {asset}<texture name="t" type="2d" file="gone.png"/><material name="m" texture="t"/>
  </asset>
  <worldbody>
    <geom name="ground" type="plane" size="1 1 1"/>
    <light pos="0 0 3"/>
    <body name="trunk" pos="0 0 0.4" quat="0 0 0 1" childclass="dog">
      <camera name="behind" pos="-1 0 0"/>
      <freejoint/>
      <inertial mass="6" pos="0 0 0" diaginertia="0.03 0.1 0.1"/>
      {look}
      <geom class="collision" type="box" size="0.15 0.06 0.05" material="m"/>
      <site name="imu" pos="0.01 0 0"/>
      {legs}
    </body>
  </worldbody>
  <actuator>{"".join(rows.format(joint) for joint in joints)}</actuator>
  <sensor>{force}</sensor>
  {f'<keyframe><key name="home" qpos="{pose}"/></keyframe>' if key else ""}
</mujoco>
"""


def _leg(
    name: str, *, facing: float, shift: float, turned: bool, meshes: bool, ranges: bool
) -> str:
    x = facing * (0.18 if name[0] == "F" else -0.18) + (shift if name == "FL" else 0.0)
    side = 1 if name[1] == "L" else -1
    hip, thigh, calf = (
        ('range="-0.8 0.8"', 'range="-0.7 3"', 'range="-2.7 -0.8"') if ranges else ("", "", "")
    )
    # the thigh's frame rolled by +-90 degrees about X: what was -Z is -Y or +Y of it, what was Y is
    # -+Z
    roll = f'quat="0.7071067811865476 {side * 0.7071067811865476} 0 0"' if turned else ""
    axis = f'axis="0 0 {-side}"' if turned else ""
    knee = f"0 {-0.2 * side} 0" if turned else "0 0 -0.2"
    back = f'quat="0.7071067811865476 {-side * 0.7071067811865476} 0 0"' if turned else ""
    look = '<geom class="visual" mesh="calf"/>' if meshes else ""
    return f"""
      <body name="{name}_hip" pos="{x} {side * 0.05} 0">
        <inertial mass="0.6" pos="0 0 0" diaginertia="0.001 0.001 0.001"/>
        <joint name="{name}_hip_joint" axis="1 0 0" {hip}/>
        <body name="{name}_thigh" pos="0 {side * 0.08} 0" {roll}>
          <inertial mass="1" pos="0 0 0" diaginertia="0.004 0.004 0.004"/>
          <joint name="{name}_thigh_joint" {axis} {thigh}/>
          <geom class="collision" size="0.015" fromto="0 0 0 {knee}"/>
          <body name="{name}_calf" pos="{knee}" {back}>
            <inertial mass="0.2" pos="0 0 -0.1" diaginertia="0.001 0.001 0.0001"/>
            <joint name="{name}_calf_joint" {calf}/>
            {look}
            <geom class="collision" size="0.01" fromto="0 0 0 0 0 -0.18"/>
            <geom name="{name}" class="foot"/>
          </body>
        </body>
      </body>"""


def person() -> str:
    """A humanoid in degrees: pelvis, waist, arms of three joints, legs of six, box feet; no
    actuators, no keyframe."""
    arms = "".join(_arm(side, sign) for side, sign in (("left", 1), ("right", -1)))
    legs = "".join(_human_leg(side, sign) for side, sign in (("left", 1), ("right", -1)))
    return f"""
<mujoco model="person">
  <compiler angle="degree"/>
  <default><geom density="800"/><joint damping="0.5" armature="0.01"/></default>
  <worldbody>
    <body name="pelvis" pos="0 0 0.9">
      <freejoint/>
      <geom type="box" size="0.08 0.12 0.06"/>
      <body name="torso" pos="0 0 0.1">
        <joint name="waist" axis="0 0 1" range="-60 60"/>
        <geom type="box" size="0.08 0.14 0.15" pos="0 0 0.15"/>
        {arms}
      </body>
      {legs}
    </body>
  </worldbody>
</mujoco>
"""


def _arm(side: str, y: int) -> str:
    roll = "-10 120" if y > 0 else "-120 10"
    return f"""
        <body name="{side}_shoulder" pos="0 {y * 0.18} 0.25">
          <joint name="{side}_shoulder_pitch" axis="0 1 0" range="-150 60"/>
          <geom size="0.03"/>
          <body name="{side}_upper_arm">
            <joint name="{side}_shoulder_roll" axis="1 0 0" range="{roll}"/>
            <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.2"/>
            <body name="{side}_forearm" pos="0 0 -0.22">
              <joint name="{side}_elbow" axis="0 1 0" range="-130 0"/>
              <geom type="capsule" size="0.025" fromto="0 0 0 0 0 -0.2"/>
            </body>
          </body>
        </body>"""


def _human_leg(side: str, y: int) -> str:
    roll = "-20 45" if y > 0 else "-45 20"
    return f"""
      <body name="{side}_hip" pos="0 {y * 0.1} -0.05">
        <joint name="{side}_hip_yaw" axis="0 0 1" range="-40 40"/>
        <geom size="0.03"/>
        <body name="{side}_hip_fork">
          <joint name="{side}_hip_roll" axis="1 0 0" range="{roll}"/>
          <geom size="0.03"/>
          <body name="{side}_thigh">
            <joint name="{side}_hip_pitch" axis="0 1 0" range="-110 40"/>
            <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.35"/>
            <body name="{side}_shin" pos="0 0 -0.4">
              <joint name="{side}_knee" axis="0 1 0" range="0 130"/>
              <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.32"/>
              <body name="{side}_ankle" pos="0 0 -0.38">
                <joint name="{side}_ankle_pitch" axis="0 1 0" range="-50 50"/>
                <geom size="0.03"/>
                <body name="{side}_foot">
                  <joint name="{side}_ankle_roll" axis="1 0 0" range="-25 25"/>
                  <geom type="box" size="0.1 0.04 0.015" pos="0.03 0 -0.06"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>"""


DOG_YAML = """
name: dog
mjcf: dog.xml
control_rate_hz: 50
imu_site: imu
drives: {kp: 60, kd: 1, torque_limit: model}
joints:
"""
for _leg_name in LEGS:
    DOG_YAML += f"""
  {_leg_name}_hip_joint: {{home: 0.0, lower: -0.8, upper: 0.8, velocity: 20}}
  {_leg_name}_thigh_joint: {{home: 0.8, lower: -0.7, upper: 3, velocity: 20}}
  {_leg_name}_calf_joint: {{home: -1.6, lower: -2.7, upper: -0.8, velocity: 20}}
"""
DOG_YAML += """
feet:
  bodies: [FL_foot, FR_foot, RL_foot, RR_foot]
  radius: 0.02
  offset: [0, 0, 0]
  at:
    FL_foot: {body: FL_calf, position: [0, 0, -0.2]}
    FR_foot: {body: FR_calf, position: [0, 0, -0.2]}
    RL_foot: {body: RL_calf, position: [0, 0, -0.2]}
    RR_foot: {body: RR_calf, position: [0, 0, -0.2]}
markers:
  base: {body: trunk, position: [0, 0, 0]}
  LF_shoulder: {body: trunk, position: [0.18, 0.05, 0]}
  RF_shoulder: {body: trunk, position: [0.18, -0.05, 0]}
  LH_hip: {body: trunk, position: [-0.18, 0.05, 0]}
  RH_hip: {body: trunk, position: [-0.18, -0.05, 0]}
  LF_foot: {body: FL_foot, position: [0, 0, 0]}
  RF_foot: {body: FR_foot, position: [0, 0, 0]}
  LH_foot: {body: RL_foot, position: [0, 0, 0]}
  RH_foot: {body: RR_foot, position: [0, 0, 0]}
symmetries:
  left_right: {normal: y, swap: [[FL_, FR_], [RL_, RR_]]}
"""


# --- what tests do with robots


def random_qpos(rng: np.random.Generator, joints: int, limit: float = np.pi) -> np.ndarray:
    """(7 + joints,) any place, any orientation, any joint angles."""
    quaternion = rng.normal(size=4)
    unit = quaternion / np.linalg.norm(quaternion)
    return np.concatenate([rng.normal(size=3), unit, rng.uniform(-limit, limit, size=joints)])


def at(model: mujoco.MjModel, qpos: np.ndarray, qvel: np.ndarray | float = 0.0) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    return data


def inertia_matrix(model: mujoco.MjModel, qpos: np.ndarray) -> np.ndarray:
    """(nv, nv) joint-space inertia."""
    matrix = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, at(model, qpos), matrix)
    return matrix


def same_bodies(ours: mujoco.MjModel, theirs: mujoco.MjModel, poses: int = 20) -> None:
    """Assert that bodies of the same name are at the same place in random poses, with the same
    inertia about the joints. |M_ij| <= sqrt(M_ii M_jj) bounds each entry."""
    rng = np.random.default_rng(0)
    for _ in range(poses):
        qpos = random_qpos(rng, theirs.nq - 7)
        here, there = at(ours, qpos), at(theirs, qpos)
        for i in range(1, theirs.nbody):
            name = theirs.body(i).name
            np.testing.assert_allclose(here.body(name).xpos, there.body(name).xpos, atol=1e-9)
            np.testing.assert_allclose(here.body(name).xmat, there.body(name).xmat, atol=1e-9)
        matrix = inertia_matrix(theirs, qpos)
        scale = np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
        assert np.max(np.abs(inertia_matrix(ours, qpos) - matrix) / scale) < 1e-9


def with_floor(robot: Robot, *, visuals: bool = True) -> mujoco.MjModel:
    spec = robot.spec(visuals=visuals)
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(name="floor", type=plane, size=[0, 0, 1], contype=1, conaffinity=1)
    return spec.compile()
