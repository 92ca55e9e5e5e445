"""The scenario suite: simulated settings, success and red flags by hand."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import pytest
import torch
from omegaconf import OmegaConf

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.core.settings import changed, from_mapping
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.sensing import SensorConfig
from npmp.envs.task import Trial
from npmp.evaluation.suite import (
    FlagConfig,
    PushTrain,
    Scenario,
    ScenarioResult,
    SuccessConfig,
    drive_load,
    foot_slip,
    joint_speeds,
    push_forces,
    red_flags,
    run_scenario,
    scenario_row,
    setup_scenario,
    speed_spread,
    wilson,
)
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig
from npmp.skills.composition import wandering
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import Walk, WalkConfig

RANGE = ((-0.5, 0.6), (-0.2, 0.2), (-0.4, 0.4))
CONF = Path(__file__).resolve().parents[2] / "conf"


def table() -> dict[str, Any]:
    """The scenarios of conf/scenario/practice.yaml."""
    scenarios: Any = OmegaConf.to_container(OmegaConf.load(CONF / "scenario/practice.yaml"))
    return dict(scenarios)


def setting(robot: Robot, name: str, **changes: Any) -> tuple[Any, Any]:
    """The setup of a scenario, and its environment."""
    scenario = from_mapping(Scenario, table()[name] | changes)
    setup = setup_scenario(
        name,
        scenario,
        changed(WalkConfig(), command_range=RANGE, terrain_fields=2),
        RobotBatchConfig(),
        RANGE,
    )
    return setup, TaskEnv(Walk(robot, setup.task), 6, robots=setup.robots, num_threads=1)


def test_wilson_by_hand() -> None:
    """9 of 10, z = 1.96: middle (0.9 + 0.19208) / 1.38416 = 0.78895; half sqrt(0.009 + 0.0092) *
    1.96 / 1.38416."""
    low, high = wilson(9, 10)
    assert low == pytest.approx(0.5958, abs=2e-4) and high == pytest.approx(0.9821, abs=2e-4)
    assert wilson(0, 100)[0] == 0.0 and wilson(100, 100)[1] == 1.0
    assert wilson(100, 100)[0] == pytest.approx(1.0 / (1.0 + 1.959964**2 / 100))  # n / (n + z^2)


def test_commands_are_clamped_to_the_policys_range(robot: Robot) -> None:
    setup, _ = setting(robot, "flat_forward")
    assert setup.command == (0.6, 0.0, 0.0)
    trial = fake(achieved=[[0.6, 0.0, 0.0]])
    assert scenario_row(setup.scenario, trial, setup.command, SuccessConfig())["scaled"]


def test_drives_of_a_model_keep_their_rate() -> None:
    scenario = from_mapping(Scenario, table()["hard_floor"], at="scenario.hard_floor")
    within = ((-1.0, 1.0),) * 3
    rates = [
        setup_scenario("hard_floor", scenario, WalkConfig(), robots, within).robots.physics
        for robots in (RobotBatchConfig(), RobotBatchConfig(actuator="pd+runs/knee"))
    ]
    assert [physics.physics_rate_hz for physics in rates] == [1000.0, None]


def test_a_payload_and_a_wet_floor_are_simulated(robot: Robot) -> None:
    mass = {}
    for name in ("payload", "flat_forward"):
        _, env = setting(robot, name)
        mass[name] = env.robots.sim.batch.get_model(3).body_mass.sum()
    assert mass["payload"] - mass["flat_forward"] == pytest.approx(5.0)
    _, env = setting(robot, "low_friction")
    actual = (
        env.robots.sim.batch.get_model(2)
        .geom_friction[env.robots.randomizer._foot_geoms, 0]
        .tolist()
    )
    assert actual == [0.2] * 4
    assert env.robots.sim.model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC


def test_sensors_are_late_by_the_delay(robot: Robot) -> None:
    """By two control steps of 20 ms."""
    _, env = setting(robot, "delay")
    exact = []
    for _ in range(5):
        env.step(torch.full((6, 12), 0.1))
        exact.append(env.robots.sensing.exact(env.state))
    torch.testing.assert_close(env.observe()[:, :12], exact[-3][:, :12])
    assert not torch.allclose(exact[-1][:, :12], exact[-3][:, :12])


@pytest.mark.parametrize("name", ["slope_up", "stairs_up"])
def test_slopes_and_stairs_lead_up(robot: Robot, name: str) -> None:
    """A slope of 15 degrees; steps of 15 cm with treads of one length, 25 to 40 cm."""
    _, env = setting(robot, name)
    here = env.state.root_pos[:, :2]
    actual = geometry.yaw_of(env.state.root_rot)
    torch.testing.assert_close(actual, torch.zeros(6), atol=1e-6, rtol=0)

    x = torch.arange(0.0, 2.5, 0.01)
    ahead = torch.nn.functional.pad(x.unsqueeze(-1), (0, 1))
    height = env.ground.terrain.height_at(here.unsqueeze(1) + ahead)
    height = height - height[:, :1]
    torch.testing.assert_close(height[:, x < 0.34], torch.zeros(6, int((x < 0.34).sum())))
    assert (height[:, 100] > 0.0).all()
    if name == "slope_up":
        rise = torch.full((6,), 1.4 * math.tan(math.radians(15.0)))
        torch.testing.assert_close(height[:, 240] - height[:, 100], rise, atol=0.01, rtol=0)
        return
    for profile in height:
        # where it is half-way up a step
        middles = torch.stack([x[profile > (k + 0.5) * 0.15][0] for k in range(4)])
        treads = middles.diff()
        assert 0.24 < float(treads[0]) < 0.41
        torch.testing.assert_close(treads, treads[:1].expand(3), atol=0.011, rtol=0)


def test_other_settings_stay() -> None:
    like = RobotBatchConfig(
        physics=PhysicsConfig(com_trunk=0.05),
        sensors=SensorConfig(joint_noise=0.03),
        pushes=PushConfig(100.0),
    )
    setup = setup_scenario(
        "payload", from_mapping(Scenario, table()["payload"]), WalkConfig(), like, RANGE
    )
    assert setup.robots.physics == PhysicsConfig(com_trunk=0.05, payload=(5.0, 5.0))
    assert setup.robots.sensors == like.sensors and setup.robots.pushes == PushConfig()
    with pytest.raises(InputError, match=r"scenario\.payload\.physics has no setting"):
        setup_scenario(
            "payload", Scenario((0.5, 0.0, 0.0), physics={"weight": 1}), WalkConfig(), like, RANGE
        )


def test_pushes_have_their_times_and_random_sides() -> None:
    train = PushTrain(force_n=50.0, duration_s=0.1, count=3, first_s=0.2, every_s=0.3)
    force = push_forces(train, 40, 0.05, torch.Generator().manual_seed(0))
    assert [t for t in range(len(force)) if force[t].any()] == [4, 5, 10, 11, 16, 17]
    assert not force[..., 0].any() and force[force != 0].abs().unique().tolist() == [50.0]
    assert torch.equal(force[4], force[5]) and not torch.equal(force[4], force[10])
    assert 10 < (force[4, :, 1] > 0).sum() < 30


def fake(
    achieved: list[list[float]], fell: list[bool] | None = None, steps: int = 100, **seen: Any
) -> Trial:
    """Robots at constant velocities, 50 Hz; those that fall do so in the middle."""
    moved = torch.tensor(achieved).expand(steps, -1, -1)
    falls = torch.zeros(moved.shape[:2], dtype=torch.bool)
    if fell is not None:
        falls[steps // 2] = torch.tensor(fell)
    seen = {"achieved": moved, "command": torch.tensor([0.5, 0.0, 0.0]).expand_as(moved), **seen}
    return Trial(seen, torch.zeros(falls.shape), falls, torch.zeros(steps + 1, 19), 0.02)


def test_success_by_hand() -> None:
    """As commanded; at a third of the speed; turning; fallen; 0.1 m/s lateral."""
    achieved = [
        [0.5, 0.0, 0.0],
        [0.17, 0.0, 0.0],
        [0.5, 0.0, 0.3],
        [0.5, 0.0, 0.0],
        [0.5, 0.1, 0.0],
    ]
    trial = fake(achieved, [False, False, False, True, False])
    row = scenario_row(
        Scenario((0.5, 0.0, 0.0), pass_mark=0.4), trial, (0.5, 0.0, 0.0), SuccessConfig()
    )
    expected = pytest.approx((0.4, 0.2, 0.4, True))
    assert (row["success"], row["fell"], row["off_command"], row["passed"]) == expected
    assert (row["bound_mps"], row["bound_rps"]) == (0.25, 0.25)
    assert row["error_mps"] == pytest.approx((0.0 + 0.33 + 0.0 + 0.1) / 4)
    still = scenario_row(
        Scenario((0.3, 0.0, 0.0)), fake([[0.0] * 3]), (0.3, 0.0, 0.0), SuccessConfig()
    )
    assert still["bound_mps"] == pytest.approx(0.15) and still["success"] == 0.0


def test_red_flags_by_hand() -> None:
    torque = torch.zeros(100, 1, 2)
    torque[:, 0, 0] = 8.0  # of 10, always; the other changes by half of its limit in every step
    torque[::2, 0, 1], torque[1::2, 0, 1] = 0.0, 10.0
    feet = torch.zeros(100, 1, 2, 2)
    # speeds; the second is in the air for half of the time
    feet[..., 0, 1], feet[..., 1, 1] = 0.05, 0.3
    feet[::2, :, 1, 0] = 0.1
    # rad/s; the second joint is at 8 in one step of a hundred
    speed = torch.full((100, 1, 2), 5.0)
    speed[50, 0, 1] = -8.0
    trial = fake([[0.4, 0.0, 0.0]], torque=torque, feet=feet, joint_vel=speed)
    two_joints: Any = SimpleNamespace(
        joint_names=("hip", "knee"), torque_limit=[10.0, 20.0], velocity_limit=[12.0, 6.0]
    )
    expected = {"p999_rps": 8.0, "max_rps": 8.0, "limit_rps": 6.0}
    assert joint_speeds([trial], two_joints)["knee"] == expected
    assert joint_speeds([trial] * 20, two_joints)["hip"]["p999_rps"] == 5.0
    load = drive_load(trial, torch.tensor([10.0, 20.0]))
    assert load == pytest.approx({"jerk": 0.25 / 0.02, "heat": 0.8, "saturation": 0.0})
    assert foot_slip(trial) == pytest.approx(0.3)
    assert drive_load(trial, torch.tensor([8.0, 20.0]))["saturation"] == 1.0
    expected = pytest.approx(0.02**0.5)
    assert (
        speed_spread(fake([[0.4, 0, 0], [0.6, 0, 0], [9.0, 0, 0]], [False, False, True]))
        == expected
    )
    scenarios = {
        "turning": Scenario((0.0, 0.0, 0.5)),
        "pushed": Scenario((0.5, 0.0, 0.0), push=PushTrain(10.0)),
    }
    results = {
        name: ScenarioResult({"command": s.command}, trial, None) for name, s in scenarios.items()
    }  # type: ignore[arg-type]
    flags = {flag["name"]: flag for flag in red_flags(results, scenarios, two_joints, FlagConfig())}
    expected = {"jerk", "heat", "slip_mps", "speed"}
    assert {name for name, flag in flags.items() if flag["raised"]} == expected
    assert flags["speed"]["value"] == pytest.approx(8.0 / 6.0)
    assert set(flags) == set(asdict(FlagConfig()))
    only = red_flags({"pushed": results["pushed"]}, scenarios, two_joints, FlagConfig())
    assert [flag["name"] for flag in only] == ["start_falls", "speed"]


def test_a_scenario_runs_all_trials(robot: Robot, skill: SkillModule) -> None:
    setup, _ = setting(robot, "push", seconds=0.3, push={"force_n": 3000.0, "first_s": 0.1})
    result = run_scenario(
        wandering(skill, torch.Generator()),
        robot,
        setup,
        SuccessConfig(last_s=0.1),
        trials=3,
        num_threads=1,
    )
    assert result.trial.fell.shape == (15, 3) and result.row["trials"] == 3
    assert (result.trial.metrics["achieved"][6, :, 1].abs() > 1.0).all()
    # of the first robot's qpos at the start: turned about the vertical, at rest at home
    turn = result.trial.qpos[0, 3:7]
    assert abs(float(turn[3])) > 0.01 and turn[1:3].abs().max() < 0.1
    assert (result.trial.metrics["command"] == torch.tensor([0.5, 0.0, 0.0])).all()


def test_one_random_joint_is_weak(robot: Robot) -> None:
    _, env = setting(robot, "weak_joint")
    limits = [env.robots.sim.batch.get_model(i).actuator_forcerange for i in range(6)]
    weak = [[k for k in range(12) if limit[k, 1] < robot.torque_limit[k]] for limit in limits]
    assert all(len(some) == 1 for some in weak) and len({some[0] for some in weak}) > 1
    for limit, (k,) in zip(limits, weak, strict=True):
        expected = pytest.approx([-0.5 * robot.torque_limit[k], 0.5 * robot.torque_limit[k]])
        assert limit[k].tolist() == expected


def test_tilted_starts_touch_the_ground(robot: Robot) -> None:
    _, env = setting(robot, "start_tilted", task={"start_tilt_deg": 20.0, "start_speed_mps": 0.1})
    lean = torch.acos(env.state.root_rot[:, 2, 2]).rad2deg()
    assert (lean > 0.5).all() and (lean < math.hypot(20, 20)).all() and lean.std() > 1.0
    soles = env.feet(env.state.root_pos, env.state.root_rot, env.state.joint_pos)[..., 2].amin(
        (-1, -2)
    )
    torch.testing.assert_close(soles, torch.full((6,), robot.foot_radius), atol=1e-5, rtol=0)
    torch.testing.assert_close(env.robots.qpos.float()[:, 2], env.state.root_pos[:, 2])
    world = geometry.to_world(env.state.root_rot, env.state.root_vel_end)
    torch.testing.assert_close(world, env.robots.qvel[:, :3].float(), atol=1e-6, rtol=0)
    assert 0.0 < world[:, :2].abs().max() <= 0.1 and world[:, 2].abs().max() < 1e-6
    actual = geometry.matrix_from_quat(env.robots.qpos[:, 3:7].float())
    torch.testing.assert_close(actual, env.state.root_rot)
