"""Other people's models: what is brought into shape, what is refused, and where they come from."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml

from npmp import robots
from npmp.robots.menagerie import is_cached, locate
from npmp.sim import flat_scene
from tests.refusals import refusal
from tests.robots.models import DOG_YAML, LEGS, dog


def write(folder: Path, *, mjcf: str | None = None, **changes: object) -> Path:
    """The dog's folder; `changes` replace entries of its robot.yaml, None leaves them out."""
    content = yaml.safe_load(DOG_YAML) | changes
    (folder / "dog.xml").write_text(mjcf or dog())
    (folder / "robot.yaml").write_text(
        yaml.safe_dump({k: v for k, v in content.items() if v is not None})
    )
    return folder


def message(folder: Path, **changes: object) -> str:
    return refusal("", robots.load, write(folder, **changes))  # type: ignore[arg-type]


def at(robot: robots.Robot, qpos: np.ndarray) -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = robot.model()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return model, data


# --- what it looks like afterwards ---


def test_shape_of_the_packages_own(tmp_path: Path) -> None:
    robot = robots.load(write(tmp_path))
    model = robot.model()
    joints = tuple(f"{leg}_{part}_joint" for leg in LEGS for part in ("hip", "thigh", "calf"))
    assert robot.joint_names == joints
    assert robot.body_names[:5] == ("trunk", "FR_hip", "FR_thigh", "FR_calf", "FR_foot")
    assert model.joint(0).name == "root" and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    assert tuple(model.actuator(i).name for i in range(model.nu)) == joints
    assert (model.nkey, model.nsensor, model.ncam, model.nlight, model.nmesh) == (0, 0, 0, 0, 0)
    assert model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL and model.opt.impratio == 10
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    np.testing.assert_array_equal(model.geom_contype, 0)
    np.testing.assert_array_equal(model.geom_conaffinity, 1)
    # not yawed as the model's own
    np.testing.assert_array_equal(model.qpos0, [0, 0, 0, 1, 0, 0, 0, *[0] * 12])
    # 6 kg trunk, 0.6 + 1 + 0.2 kg a leg: feet made of shapes weigh nothing
    assert model.body_mass.sum() == pytest.approx(13.2)
    assert (robot.physics_rate_hz, robot.control_rate_hz) == (500, 50)
    # motors of gear 2 and +-10: 20 Nm
    np.testing.assert_array_equal(robot.torque_limit, 20)
    np.testing.assert_array_equal(robot.kp, 60)


def test_feet_become_bodies_at_their_spheres(tmp_path: Path) -> None:
    """At zero joints the left front foot is at hip + (0, 0.08, 0), thigh and calf of 0.2 m each
    down."""
    for turned in (False, True):
        robot = robots.load(write(tmp_path, mjcf=dog(turned=turned)))
        model, data = at(robot, np.array([0, 0, 0, 1, 0, 0, 0, *[0] * 12], dtype=float))
        np.testing.assert_allclose(data.body("FL_foot").xpos, [0.18, 0.13, -0.4], atol=1e-12)
        np.testing.assert_allclose(data.body("FL_foot").xquat, [1, 0, 0, 0], atol=1e-12)
        foot = model.geom("FL")
        assert model.body(foot.bodyid[0]).name == "FL_foot"
        np.testing.assert_allclose(data.geom("FL").xpos, [0.18, 0.13, -0.4], atol=1e-12)
        # hard contacts with the model's own sliding friction
        assert foot.condim[0] == 3 and foot.priority[0] == 1 and foot.friction[0] == 0.8
        assert foot.solimp[0] == 0.9
        # thigh 0.2 m back by 0.8 rad, calf 0.2 m forth by 0.8 rad, the sole 0.02 m lower
        assert robot.home_qpos[2] == pytest.approx(0.4 * np.cos(0.8) + 0.02)


def test_a_foot_without_a_shape_gets_a_sphere(tmp_path: Path) -> None:
    mjcf = dog()
    for leg in LEGS:
        mjcf = mjcf.replace(f'<geom name="{leg}" class="foot"/>', "")
    robot = robots.load(write(tmp_path, mjcf=mjcf))
    model, data = at(robot, robot.home_qpos)
    assert model.geom("FL_foot_sole").size[0] == 0.02
    np.testing.assert_allclose(
        data.geom("FL_foot_sole").xpos, data.body("FL_foot").xpos, atol=1e-12
    )


def test_looks_do_not_change_the_physics(tmp_path: Path) -> None:
    robot = robots.load(write(tmp_path))
    ends = []
    for visuals in (True, False):
        spec = robot.spec(visuals=visuals)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], contype=1)
        model = spec.compile()
        data = mujoco.MjData(model)
        data.qpos[:], data.ctrl[:] = robot.home_qpos, robot.home_joints + 0.1
        mujoco.mj_step(model, data, 100)
        ends.append(data.qpos.copy())
    np.testing.assert_array_equal(*ends)


def test_a_robot_is_made_of_what_other_processes_can_get(tmp_path: Path) -> None:
    """As Ray sends it: all that it holds can be copied, as a model's spec cannot."""
    robot = robots.load(write(tmp_path))
    plain = {k: dict(v) if hasattr(v, "keys") else v for k, v in vars(robot).items()}
    assert type(robot)(**copy.deepcopy(plain)).spec().to_xml() == robot.spec().to_xml()


def test_the_models_defaults_stay_its_own(tmp_path: Path) -> None:
    """What the model's top-level defaults say of its shapes is no default of the floor's, nor of
    the drives."""
    geom = '<geom friction="5" material="m" solref="0.5 1" contype="4"/>'
    others = '<general gear="7" forcerange="-1 1"/><site group="5"/>'
    mjcf = dog().replace('<default class="dog">', f'{geom}{others}<default class="dog">')
    robot = robots.load(write(tmp_path, mjcf=mjcf))
    scene, plain = flat_scene(robot), flat_scene(robots.load("anymal_b"))
    for figure in ("geom_friction", "geom_solref", "geom_contype", "geom_matid"):
        floors = [getattr(model, figure)[model.geom("floor").id] for model in (scene, plain)]
        np.testing.assert_array_equal(*floors)
    np.testing.assert_array_equal(scene.actuator_gear[:, 0], 1)
    # the model's own motors have gear 2 and, by its default, 1 Nm
    assert {*robot.torque_limit} == {2}
    robot.on_floor(visuals=True).compile()


def test_rates_and_imu_as_robot_yaml_says(tmp_path: Path) -> None:
    imu = {"body": "FL_hip", "position": [0, 0, 0.1]}
    robot = robots.load(write(tmp_path, physics_rate_hz=400, imu=imu, imu_site=None))
    model = robot.model()
    assert robot.physics_rate_hz == pytest.approx(400) and robot.imu_site == "imu"
    site = model.site("imu")
    assert model.body(site.bodyid[0]).name == "FL_hip" and site.pos[2] == 0.1


def test_the_models_own_gains(tmp_path: Path) -> None:
    """Position actuators of kp 60, kd 1.5 and 25 Nm; through a gear of 2 the joint feels 4 kp, 4 kd
    and twice the force."""
    robot = robots.load(write(tmp_path, mjcf=dog(actuators="position"), drives="model"))
    assert {*robot.kp} == {60} and {*robot.kd} == {1.5} and {*robot.torque_limit} == {25}
    geared = dog(actuators="position").replace('biastype="affine"', 'biastype="affine" gear="2"')
    robot = robots.load(write(tmp_path, mjcf=geared, drives={}))
    assert {*robot.kp} == {240} and {*robot.kd} == {6} and {*robot.torque_limit} == {50}
    per_joint = {name: 10.0 + i for i, name in enumerate(robot.joint_names)}
    robot = robots.load(write(tmp_path, drives={"kp": per_joint, "kd": 0, "torque_limit": 5}))
    np.testing.assert_array_equal(robot.kp, np.arange(10.0, 22.0))
    assert {*robot.kd} == {0} and {*robot.torque_limit} == {5}


def test_names_where_the_model_has_none_and_a_root_where_it_is_fixed(tmp_path: Path) -> None:
    mjcf = (
        dog().replace("<freejoint/>", "").replace('<joint name="FL_hip_joint" axis', "<joint axis")
    )
    mjcf = mjcf.replace(
        '<motor name="FL_hip" joint="FL_hip_joint" gear="2" ctrlrange="-10 10"/>', ""
    )
    robot = robots.load(write(tmp_path, mjcf=mjcf, drives={"kp": 60, "kd": 1, "torque_limit": 20}))
    assert "FL_hip_joint" in robot.joint_names  # BODY_joint
    assert robot.model().nq == 19


# --- what is refused ---


IMU = {"body": "tail", "position": [0, 0, 0]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"drives": {"kp": "model"}}, "drives.kp: the model has none for joint 'FR_hip_joint'"),
        ({"drives": {"kp": {"FR_hip_joint": 1}, "kd": 1}}, "drives.kp lacks 'FR_thigh_joint'"),
        ({"drives": None, "physics_rate_hz": 400}, "physics_rate_hz needs `drives:`"),
        ({"imu": IMU, "imu_site": None}, "imu.body: no body 'tail'"),
    ],
)
def test_wrong_entries_are_named(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    assert expected in message(tmp_path, **changes)


HIP = 'name="FL_hip_joint" axis="1 0 0"'
TRUNK = '<inertial mass="6" pos="0 0 0" diaginertia="0.03 0.1 0.1"/>'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('contype="0" conaffinity="0"', "", "mesh '"),
        (TRUNK, "", "body 'trunk'"),
        (HIP, f'{HIP} ref="0.1"', "joint 'FL_hip_joint' has a ref"),
    ],
)
def test_unfit_models_are_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in dog()
    assert expected in message(tmp_path, mjcf=dog().replace(old, new, 1))


def test_feet_at_are_checked(tmp_path: Path) -> None:
    feet = yaml.safe_load(DOG_YAML)["feet"]
    assert "no body 'FL_toe'" in message(
        tmp_path, feet=feet | {"at": {"FL_foot": {"body": "FL_toe", "position": [0, 0, 0]}}}
    )
    expected = "feet.at.FL_calf"
    assert expected in message(tmp_path, feet=feet | {"at": {"FL_calf": feet["at"]["FL_foot"]}})
    points = {foot: [[0, 0, 0], [0.1, 0, 0]] for foot in feet["bodies"]}
    robot = robots.load(write(tmp_path, feet=feet | {"points": points}))
    assert robot.foot_points.shape == (4, 2, 3)
    points["RR_foot"] = [[0, 0, 0]]
    assert "points" in message(tmp_path, feet=feet | {"points": points})


# --- Menagerie ---


def test_menagerie_by_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_dog").mkdir()
    (tmp_path / "some_dog" / "dog.xml").write_text(dog())
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    content = yaml.safe_load(DOG_YAML) | {"mjcf": "menagerie:some_dog/dog.xml"}
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump(content))
    assert robots.load(tmp_path).mjcf == tmp_path / "some_dog" / "dog.xml"
    assert is_cached("menagerie:some_dog/dog.xml") and not is_cached("menagerie:some_dog/cat.xml")
    for wrong in ("menagerie:no_dog/dog.xml", "menagerie:dog.xml", "menagerie:../x/dog.xml"):
        refusal(wrong, locate, wrong, tmp_path)


def test_menagerie_without_package_or_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)  # importing it fails
    refusal("mujoco-menagerie.*MENAGERIE_ROOT", robots.load, "anymal_c")
    assert not robots.is_local("anymal_c") and robots.is_local("anymal_b")


def test_menagerie_offline_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    menagerie = pytest.importorskip("mujoco_menagerie")
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path))

    def unreachable(*_: object) -> Path:
        raise menagerie.DownloadError("no\nnetwork")

    assert not robots.is_local("anymal_c")
    monkeypatch.setattr(menagerie.Robot, "path", unreachable)
    refusal("anymal_c.xml: no network.*MENAGERIE_ROOT", robots.load, "anymal_c")


# --- one's own by name ---


def test_own_robots_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "robots" / "rex").mkdir(parents=True)
    write(tmp_path / "robots" / "rex")
    (tmp_path / "kennel" / "bello").mkdir(parents=True)
    write(tmp_path / "kennel" / "bello")
    monkeypatch.chdir(tmp_path)
    assert robots.user_names() == ("rex",) and robots.load("rex").name == "dog"
    monkeypatch.setenv("NPMP_ROBOTS", str(tmp_path / "kennel"))
    assert robots.user_names() == ("bello", "rex")
    assert robots.find("bello") == tmp_path / "kennel" / "bello" / "robot.yaml"
    refusal("'fifi'.*anymal_b.*, bello, rex", robots.load, "fifi")
