"""Domain randomization: what is drawn is what is simulated."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots
from npmp.robots import Robot
from npmp.robots.description import CONES
from npmp.sim import BatchSim, flat_scene
from npmp.sim.randomization import (
    JointPhysics,
    PhysicsConfig,
    PhysicsRandomizer,
    PushConfig,
    Pusher,
    Spread,
    with_nominal,
)
from npmp.sim.scene import FIELD_CONTACT_S
from npmp.sim.terrain import Terrain, TerrainConfig
from tests.environments import EVERYTHING


def simulations(robot: Robot, n: int) -> BatchSim:
    sim = BatchSim(flat_scene(robot), n, control_rate_hz=robot.control_rate_hz, num_threads=1)
    sim.set_state(
        torch.arange(n), torch.tensor(robot.home_qpos).expand(n, -1), torch.zeros(n, sim.model.nv)
    )
    return sim


@pytest.fixture(scope="module")
def op3() -> Robot:
    return robots.load("op3")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nothing_varies_by_default(robot: Robot) -> None:
    sim = simulations(robot, 3)
    physics = PhysicsRandomizer(sim, robot, PhysicsConfig())
    physics.sample(torch.arange(3), generator())
    assert physics.size == 0 and physics.unit.shape == (3, 0)
    assert PhysicsConfig(payload=(0.0, 0.0)).payload is None
    for name in ("body_mass", "actuator_gainprm", "geom_friction"):
        result = getattr(sim.batch.get_model(1), name)
        np.testing.assert_array_equal(result, getattr(sim.model, name))


def test_fields_are_the_products_that_the_draws_say(robot: Robot) -> None:
    """(1 + 0.3 u_global) (1 + 0.1 u_i) c and the like, by hand for one simulation; the others keep
    theirs."""
    sim = simulations(robot, 2)
    physics = PhysicsRandomizer(sim, robot, EVERYTHING)
    unit = torch.zeros(1, physics.size)
    columns = physics.columns
    unit[0, columns["mass_whole"]] = 0.5
    unit[0, columns["mass_each"]][:2] = torch.tensor([1.0, -1.0])
    unit[0, columns["gain_whole"]] = -1.0
    unit[0, columns["damping_each"]][3] = 1.0
    unit[0, columns["torque_whole"]] = 1.0
    unit[0, columns["friction"]] = -1.0
    unit[0, columns["com_trunk"]] = torch.tensor([1.0, 0.0, -0.5])
    unit[0, columns["joint_offset"]][1] = -1.0
    physics.set(torch.tensor([1]), unit)
    model, nominal = sim.batch.get_model(1), sim.model
    first, second = physics._bodies[:2]
    assert model.body_mass[first] == pytest.approx(nominal.body_mass[first] * 1.15 * 1.1)
    assert model.body_mass[second] == pytest.approx(nominal.body_mass[second] * 1.15 * 0.9)
    expected = nominal.body_inertia[second] * 1.15 * 0.9
    np.testing.assert_allclose(model.body_inertia[second], expected)
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], 0.8 * robot.kp)
    np.testing.assert_allclose(model.actuator_biasprm[:, 1], -0.8 * robot.kp)
    np.testing.assert_allclose(model.actuator_biasprm[3, 2], -1.1 * robot.kd[3])
    np.testing.assert_allclose(model.actuator_biasprm[4, 2], -robot.kd[4])
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], 1.2 * robot.torque_limit)
    np.testing.assert_allclose(model.geom_friction[physics._foot_geoms, 0], 0.4)
    result = model.body_ipos[1] - nominal.body_ipos[1]
    np.testing.assert_allclose(result, [0.05, 0.0, -0.025], atol=1e-12)
    assert physics.joint_offset[1].tolist() == pytest.approx([0, -0.05] + [0] * 10)
    # derived constants follow
    assert model.body_subtreemass[1] == pytest.approx(model.body_mass.sum())
    np.testing.assert_array_equal(sim.batch.get_model(0).body_mass, nominal.body_mass)


def test_draws_fill_their_ranges(robot: Robot) -> None:
    sim = simulations(robot, 400)
    physics = PhysicsRandomizer(sim, robot, EVERYTHING)
    physics.sample(torch.arange(400), generator())
    friction = sim.batch.expand("geom_friction")[:, physics._foot_geoms, 0]
    assert np.ptp(friction, axis=1).max() == 0  # one ground for all feet
    assert 0.4 <= friction.min() < 0.42 and 0.98 < friction.max() <= 1.0
    assert friction.mean() == pytest.approx(0.7, abs=0.03)
    mass = sim.batch.expand("body_mass").sum(1) / sim.model.body_mass.sum()
    assert 0.63 < mass.min() < 0.75 and 1.25 < mass.max() < 1.43
    assert physics.joint_offset.abs().max() <= 0.05
    assert physics.joint_offset.std() == pytest.approx(0.05 / 3**0.5, rel=0.1)


def test_a_drawn_robot_moves_as_a_model_compiled_so(robot: Robot) -> None:
    """The batch with drawn fields against a single MjData of that very model, some steps of a
    stumble."""
    sim = simulations(robot, 2)
    physics = PhysicsRandomizer(sim, robot, EVERYTHING)
    physics.sample(torch.arange(2), generator(3))
    model = sim.batch.get_model(1)
    data = mujoco.MjData(model)
    data.qpos[:] = robot.home_qpos
    target = torch.tensor(robot.home_joints).expand(2, -1) + 0.3
    for _ in range(10):
        sim.step(target)
        data.ctrl[:] = target[1]
        mujoco.mj_step(model, data, sim.substeps)
    np.testing.assert_allclose(sim.qpos[1].numpy(), data.qpos, atol=1e-9)


def test_a_payload_adds_to_the_trunks_scaled_mass_alone(op3: Robot) -> None:
    """0.1 + 0.75 * 0.4 kg = 0.4 kg for a draw of 0.5; the trunk's inertia has the mass's scale, its
    centre its shift."""
    sim = simulations(op3, 2)
    config = PhysicsConfig(mass=Spread(0.3), payload=(0.1, 0.5), com_trunk=0.01)
    physics = PhysicsRandomizer(sim, op3, config)
    unit = torch.tensor([[-1.0, 0.0, 0.0, 1.0, 0.5]])  # mass, three of the centre of mass, payload
    physics.set(torch.tensor([1]), unit)
    wanted = {"mass_whole": 1, "com_trunk": 3, "payload": 1}
    assert {name: len(value) for name, value in physics.samples(1).items()} == wanted
    nominal, drawn = sim.model, sim.batch.get_model(1)
    trunk = nominal.body(op3.body_names[0]).id
    expected = 0.7 * nominal.body_mass
    expected[trunk] += 0.4
    np.testing.assert_allclose(drawn.body_mass, expected)
    np.testing.assert_allclose(drawn.body_inertia, 0.7 * nominal.body_inertia)
    result = drawn.body_ipos[trunk] - nominal.body_ipos[trunk]
    np.testing.assert_allclose(result, [0.0, 0.0, 0.01], atol=1e-12)
    # derived constants follow
    assert drawn.body_subtreemass[trunk] == pytest.approx(expected.sum())
    np.testing.assert_array_equal(
        sim.batch.get_model(0).body_mass, nominal.body_mass
    )  # nothing was drawn for the first
    physics.set(torch.tensor([1]), unit)  # nothing adds up over episodes
    np.testing.assert_allclose(sim.batch.get_model(1).body_mass, expected)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_every_draw_changes_something(name: str) -> None:
    """Of ANYmal's 134 numbers 29 did not: its friction loss is 0, and its feet weigh 1 g. OP3's
    servos have both."""
    robot = robots.load(name)
    sim = simulations(robot, 2)
    physics = PhysicsRandomizer(sim, robot, EVERYTHING)
    lost = sum(
        columns.stop - columns.start
        for key, columns in physics.columns.items()
        if "friction_loss" in key
    )
    assert lost == {"anymal_b": 0, "op3": 21}[name]
    for column in range(physics.size):
        unit = torch.zeros(2, physics.size)
        unit[1, column] = 1.0
        physics.set(torch.arange(2), unit)
        changed = [
            values[0] != values[1] for values in (*physics._fields.values(), physics.joint_offset)
        ]
        assert any(bool(values.any()) for values in changed), column
    with pytest.raises(ValueError, match="3 samples"):
        physics.set(torch.arange(2), torch.zeros(2, 3))


def test_first_order_hold_reaches_the_setpoint_with_the_last_physics_step(robot: Robot) -> None:
    """Against a loop that interpolates by hand; a constant setpoint is the zero-order hold, to the
    bit."""
    sim, held, ramped = simulations(robot, 1), simulations(robot, 1), simulations(robot, 1)
    old = torch.tensor(robot.home_joints).unsqueeze(0)
    new = old + 0.2
    sim.step(new, previous=old)
    data = mujoco.MjData(sim.model)
    data.qpos[:] = robot.home_qpos
    for k in range(8):
        data.ctrl[:] = (old + (new - old) * (k + 1) / 8)[0]
        mujoco.mj_step(sim.model, data)
    np.testing.assert_allclose(sim.qpos[0].numpy(), data.qpos, atol=1e-12)
    held.step(new)
    ramped.step(new, previous=new)
    assert torch.equal(held.qpos, ramped.qpos)


def test_pushes_have_the_configured_times_and_forces(robot: Robot) -> None:
    sim = simulations(robot, 500)
    pusher = Pusher(sim, 1, PushConfig(force=50.0, duration_s=0.1, gap_s=1.0), 0.02)
    ids, g = torch.arange(500), generator()
    pusher.begin(ids, g)
    assert not pusher.force.any()
    rows = []
    for _ in range(1500):
        pusher.advance(g)
        rows.append(pusher.force.clone())
    force = torch.stack(rows[200:]).norm(dim=-1)
    pushing = force > 0
    begins = pushing[1:] & ~pushing[:-1]
    mean_push = pushing.sum() / begins.sum() * 0.02
    mean_gap = (~pushing).sum() / begins.sum() * 0.02
    # times are rounded up to whole control steps of 0.02 s: half a step more than drawn on average
    assert mean_push.item() == pytest.approx(0.11, abs=0.012)
    assert mean_gap.item() == pytest.approx(1.01, abs=0.05)
    at_begin = force[1:][begins]
    assert at_begin.max() <= 50.0 and at_begin.mean().item() == pytest.approx(25.0, abs=1.0)
    applied = torch.from_numpy(sim.batch.bind("xfrc_applied"))
    torch.testing.assert_close(applied[:, 1, :2].float(), pusher.force)
    assert not applied[:, 1, 2:].any() and not applied[:, 2:].any()


def test_a_push_accelerates_the_robot(robot: Robot) -> None:
    """50 N on 30.5 kg in the air for 0.02 s: 0.033 m/s."""
    sim = simulations(robot, 1)
    qpos = torch.tensor(robot.home_qpos).unsqueeze(0).clone()
    qpos[:, 2] += 1.0
    sim.set_state(torch.arange(1), qpos, torch.zeros(1, sim.model.nv))
    torch.from_numpy(sim.batch.bind("xfrc_applied"))[:, 1, 1] = 50.0
    sim.step(torch.tensor(robot.home_joints).unsqueeze(0))
    mass = float(sim.model.body_mass.sum())
    data = sim.batch.get_data(0)
    mujoco.mj_forward(sim.model, data)
    mujoco.mj_subtreeVel(sim.model, data)
    assert data.subtree_linvel[1, 1] == pytest.approx(50.0 * 0.02 / mass, rel=1e-3)


# --- joints that were identified

IDENTIFIED = {
    "LF_HAA": JointPhysics(
        armature=0.05, damping=0.4, friction_loss=0.3, kp=90.0, kd=2.0, offset=0.02
    )
}


def test_what_was_identified_is_what_is_nominal(robot: Robot) -> None:
    """The joint that was named has its own figures, the others the model's; spreads are about them,
    and the constants that MuJoCo derives of armatures follow."""
    scene = flat_scene(robot)
    config = PhysicsConfig(
        nominal=IDENTIFIED, armature=Spread(each=0.5), gain=Spread(each=0.1), joint_offset=0.01
    )
    model = with_nominal(scene, robot, config)
    assert scene.dof_armature[6] == 0.0  # the scene itself is as it was
    assert model.dof_M0[6] == pytest.approx(scene.dof_M0[6] + 0.05)
    assert (model.dof_armature[7:] == 0.0).all() and model.actuator_gainprm[0, 0] == 90.0
    assert list(model.actuator_biasprm[0, :3]) == [0.0, -90.0, -2.0]
    assert (model.dof_damping[6], model.dof_frictionloss[6]) == (0.4, 0.3)
    sim = BatchSim(model, 2, control_rate_hz=robot.control_rate_hz, num_threads=1)
    physics = PhysicsRandomizer(sim, robot, config)
    assert physics.joint_offset[0].tolist() == pytest.approx([0.02] + 11 * [0.0])
    physics.set(torch.tensor([1]), torch.full((1, physics.size), -1.0))
    drawn = sim.batch.get_model(1)
    assert drawn.dof_armature[6] == pytest.approx(0.025)
    assert drawn.actuator_gainprm[:2, 0] == pytest.approx([81, 90])
    assert drawn.dof_M0[6] == pytest.approx(scene.dof_M0[6] + 0.025)
    assert physics.joint_offset[1].tolist() == pytest.approx([0.01] + 11 * [-0.01])
    assert with_nominal(scene, robot, PhysicsConfig()) is scene


def test_a_joint_that_is_not_there_is_named(robot: Robot) -> None:
    with pytest.raises(InputError, match="no joint 'knee'; available: LF_HAA"):
        with_nominal(flat_scene(robot), robot, PhysicsConfig(nominal={"knee": JointPhysics()}))
    with pytest.raises(ValueError, match="kp must be above 0"):
        JointPhysics(kp=0.0)
    with pytest.raises(ValueError, match="armature"):
        JointPhysics(armature=-0.1)


@pytest.mark.parametrize(("cone", "slides"), [("pyramidal", True), ("elliptic", False)])
def test_elliptic_cones_hold_alike_in_all_directions(robot: Robot, cone: str, slides: bool) -> None:
    """A box of 1 kg, friction 0.5, under 4 N: 0.82 of what holds it along x. A pyramid's edge at 45
    degrees holds 0.71 of that."""
    scene = mujoco.MjModel.from_xml_string(
        """<mujoco><option impratio="10"/><worldbody><geom type="plane" size="5 5 1"/>
        <body pos="0 0 0.1"><freejoint/><geom type="box" size=".1 .1 .1" mass="1" friction="0.5"
        priority="1"/></body></worldbody></mujoco>"""
    )
    model = with_nominal(scene, robot, PhysicsConfig(cone=cone))
    moved = {}
    for degrees in (0.0, 45.0):
        data = mujoco.MjData(model)
        angle = np.radians(degrees)
        data.xfrc_applied[1, :2] = 4.0 * np.array([np.cos(angle), np.sin(angle)])
        mujoco.mj_step(model, data, 500)
        moved[degrees] = float(np.linalg.norm(data.qpos[:2]))
    assert moved[0.0] < 0.05
    assert (moved[45.0] > 0.1) == slides


def test_soft_ground_gives_way_by_the_square_of_its_time_constant(robot: Robot) -> None:
    """A contact's stiffness is 1 / (dmax^2 tc^2 dampratio^2) per unit of mass (MuJoCo,
    "Computation", reference acceleration), so twice the time constant is four times the depth.
    Draws are even over the logarithm: the middle of 0.02 to 0.08 s is 0.04 s."""
    sim = simulations(robot, 3)
    physics = PhysicsRandomizer(sim, robot, PhysicsConfig(contact_s=(0.02, 0.08)))
    physics.set(torch.arange(3), torch.tensor([[-1.0], [0.0], [1.0]]))
    depth = []
    for i, constant in enumerate((0.02, 0.04, 0.08)):
        model = sim.batch.get_model(i)
        np.testing.assert_allclose(model.geom_solref[physics._touching, 0], constant)
        model.geom_solimp[:, :2] = 0.95  # an impedance that does not depend on the depth
        data = mujoco.MjData(model)
        data.qpos[:] = robot.home_qpos
        data.ctrl[:] = robot.home_joints
        mujoco.mj_step(model, data, 1200)
        depth.append(-data.contact.dist.mean())
    assert depth[1] / depth[0] == pytest.approx(4.0, rel=0.05)
    assert depth[2] / depth[1] == pytest.approx(4.0, rel=0.05)


def test_a_constant_contact_holds_without_a_draw(robot: Robot) -> None:
    sim = simulations(robot, 2)
    physics = PhysicsRandomizer(sim, robot, PhysicsConfig(contact_s=(0.005, 0.005)))
    physics.sample(torch.arange(2), generator())
    assert physics.size == 0
    constant = sim.batch.expand("geom_solref")[:, physics._touching, 0]
    np.testing.assert_allclose(constant, 0.005, rtol=1e-12)


@pytest.mark.parametrize("restitution", [0.0, 0.1, 0.3, 0.6])
def test_a_foot_rebounds_by_its_restitution(robot: Robot, restitution: float) -> None:
    """A ball with the contacts of a foot, on floors of the least time constant that MuJoCo allows,
    and of longer ones. 0.08: contacts end early and stiffen with the depth (`damping_ratio`)."""
    for contact_s in (0.005, 0.01, 0.04):
        sim = simulations(robot, 1)
        config = PhysicsConfig(
            restitution=(restitution, restitution), contact_s=(contact_s, contact_s)
        )
        physics = PhysicsRandomizer(sim, robot, config)
        physics.sample(torch.arange(1), generator())
        model = sim.batch.get_model(0)
        constant, ratio = model.geom_solref[physics._foot_geoms[0]]
        scene = mujoco.MjModel.from_xml_string(
            f"""<mujoco><option timestep="{model.opt.timestep}" integrator="implicitfast"/>
            <default><geom solref="{constant} {ratio}"/></default><worldbody>
            <geom type="plane" size="5 5 1"/><body pos="0 0 0.1"><freejoint/>
            <geom type="sphere" size=".02" mass="2"/></body></worldbody></mujoco>"""
        )
        share = [rebound(scene, speed) for speed in np.linspace(0.5, 1.5, 21)]
        assert np.mean(share) == pytest.approx(restitution, abs=0.08)


def rebound(scene: mujoco.MjModel, speed: float) -> float:
    """Speed of a falling body after its contact, as a share of that before."""
    data = mujoco.MjData(scene)
    data.qvel[2] = -speed
    fastest = 0.0
    touched = False
    while data.time < 0.5 and (not touched or data.ncon):
        fastest = max(fastest, -data.qvel[2])
        mujoco.mj_step(scene, data)
        touched = touched or data.ncon > 0
    return float(max(data.qvel[2], 0.0) / fastest)


def test_restitution_is_uniform_and_does_not_change_the_stiffness(robot: Robot) -> None:
    """exp(-pi r / sqrt(1 - r^2)) of the ratios is 0.1, 0.2, 0.3. The stiffness is 1 / (constant
    ratio)^2, without restitution 1 / contact_s^2; 0.02 s is the model's, the middle of 0.005 to
    0.02 s is 0.01 s."""
    for contact_s, constants in ((None, (0.02,) * 3), ((0.005, 0.02), (0.005, 0.01, 0.02))):
        sim = simulations(robot, 3)
        before = sim.model.geom_solref.copy()
        config = PhysicsConfig(restitution=(0.1, 0.3), contact_s=contact_s)
        physics = PhysicsRandomizer(sim, robot, config)
        unit = torch.tensor([[-1.0], [0.0], [1.0]]).expand(3, physics.size)
        physics.set(torch.arange(3), unit)
        solref = sim.batch.expand("geom_solref")
        constant, ratio = solref[:, physics._foot_geoms].transpose(2, 0, 1)
        restitution = np.exp(-np.pi * ratio / np.sqrt(1 - ratio**2))
        for values, expected in ((restitution, (0.1, 0.2, 0.3)), (constant * ratio, constants)):
            np.testing.assert_allclose(values, np.array([expected]).T.repeat(values.shape[1], 1))
        others = np.setdiff1d(np.arange(len(before)), physics._touching)
        np.testing.assert_array_equal(solref[:, others], before[others][None].repeat(3, 0))
        if contact_s is None:
            floor = np.setdiff1d(physics._touching, physics._foot_geoms)
            np.testing.assert_array_equal(solref[:, floor], before[floor][None].repeat(3, 0))


def test_restitution_needs_time_constants(robot: Robot) -> None:
    with pytest.raises(ValueError, match="restitution must be below 1"):
        PhysicsConfig(restitution=(0.0, 1.0))
    sim = simulations(robot, 1)
    sim.model.geom_solref[:] = -1000.0, -50.0
    with pytest.raises(InputError, match="restitution: the feet of robot 'anymal_b'"):
        PhysicsRandomizer(sim, robot, PhysicsConfig(restitution=(0.0, 0.4)))


# --- contacts

CONTACTS = PhysicsConfig(
    condim=(3, 4, 6),
    cone=("pyramidal", "elliptic"),
    torsional=(0.005, 0.02),
    rolling=(0.0001, 0.01),
    impratio=(1.0, 100.0),
)


def test_contacts_are_those_of_the_samples(robot: Robot) -> None:
    """Ranges are log-uniform: their middles are sqrt(0.005 * 0.02) = 0.01, 0.001 and 10. Thirds of
    [-1, 1] are the dimensions, halves the cones."""
    sim = simulations(robot, 3)
    physics = PhysicsRandomizer(sim, robot, CONTACTS)
    assert physics.size == 5
    physics.set(torch.arange(3), torch.tensor([[-1.0], [0.0], [1.0]]).repeat(1, 5))
    feet = physics._foot_geoms
    for i, (condim, torsional, rolling, cone, impratio) in enumerate(
        ((3, 0.005, 0.0001, 0, 1.0), (4, 0.01, 0.001, 1, 10.0), (6, 0.02, 0.01, 1, 100.0))
    ):
        model = sim.batch.get_model(i)
        assert (model.geom_condim[feet] == condim).all()
        np.testing.assert_allclose(model.geom_friction[feet, 1], torsional)
        np.testing.assert_allclose(model.geom_friction[feet, 2], rolling)
        assert model.opt.cone == cone
        assert model.opt.impratio == pytest.approx(impratio)
        # other geoms and sliding friction are the model's
        others = np.setdiff1d(np.arange(model.ngeom), feet)
        np.testing.assert_array_equal(model.geom_condim[others], sim.model.geom_condim[others])
        np.testing.assert_array_equal(model.geom_friction[:, 0], sim.model.geom_friction[:, 0])


def test_each_robot_moves_by_its_own_contacts(robot: Robot) -> None:
    """Against one MjData of each model, standing robots that turn on their feet."""
    sim = simulations(robot, 6)
    physics = PhysicsRandomizer(sim, robot, CONTACTS)
    unit = torch.zeros(6, physics.size)
    unit[:, physics.columns["condim"]] = torch.tensor([-1.0, 0.0, 1.0]).repeat(2).unsqueeze(1)
    unit[3:, physics.columns["cone"]] = -1.0
    physics.set(torch.arange(6), unit)
    target = torch.tensor(robot.home_joints).expand(6, -1)
    sim.wrench(1)[:, 5] = 20.0
    for _ in range(5):
        sim.step(target)
    for i in range(6):
        model = sim.batch.get_model(i)
        data = mujoco.MjData(model)
        data.qpos[:] = robot.home_qpos
        data.ctrl[:] = target[i]
        data.xfrc_applied[1, 5] = 20.0
        mujoco.mj_step(model, data, 5 * sim.substeps)
        assert data.ncon
        np.testing.assert_array_equal(sim.qpos[i].numpy(), data.qpos)
    assert len({tuple(row) for row in sim.qpos.tolist()}) == 6


def test_contacts_that_all_robots_share_are_the_models(robot: Robot) -> None:
    """Without samples, and without fields of each robot, which Warp lacks."""
    config = PhysicsConfig(condim=(6,), cone=("elliptic",), impratio=(100.0, 100.0))
    assert (config.condim, config.cone) == (6, "elliptic")
    model = with_nominal(flat_scene(robot), robot, config)
    sim = BatchSim(model, 2, control_rate_hz=robot.control_rate_hz, num_threads=1)
    physics = PhysicsRandomizer(sim, robot, config)
    assert physics.size == 0 and not physics._fields
    assert (model.opt.cone, model.opt.impratio) == (CONES["elliptic"], 100.0)
    feet = physics._foot_geoms
    assert (model.geom_condim[feet] == 6).all()
    assert (np.delete(model.geom_condim, feet) == 3).sum() > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("condim", (3, 5)), ("condim", ()), ("cone", "round"), ("rolling", (0.0, 0.1))],
)
def test_contacts_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        PhysicsConfig(**{name: value})  # type: ignore[arg-type]


def test_contacts_with_terrain_are_never_soft(robot: Robot) -> None:
    terrain = Terrain(TerrainConfig("stairs", fields=1))
    model = flat_scene(robot, terrain.add_to_scene)
    sim = BatchSim(model, 3, control_rate_hz=robot.control_rate_hz, num_threads=1)
    physics = PhysicsRandomizer(sim, robot, PhysicsConfig(contact_s=(0.005, 0.04)))
    physics.set(torch.arange(3), torch.tensor([[-1.0], [0.0], [1.0]]))
    constant = sim.batch.expand("geom_solref")[:, physics._touching, 0]
    np.testing.assert_allclose(constant.max(-1), [0.005, 0.01, 0.01], rtol=1e-6)


def test_feet_that_rebound_on_terrain_are_as_stiff_as_half_the_bound(robot: Robot) -> None:
    """They sink in twice as deep, and stick in the sides of steps."""
    terrain = Terrain(TerrainConfig("stairs", fields=1))
    model = flat_scene(robot, terrain.add_to_scene)
    sim = BatchSim(model, 3, control_rate_hz=robot.control_rate_hz, num_threads=1)
    physics = PhysicsRandomizer(sim, robot, PhysicsConfig(restitution=(0.0, 0.4)))
    physics.set(torch.arange(3), torch.tensor([[-1.0], [0.0], [1.0]]))
    stiffness = sim.batch.expand("geom_solref")[:, physics._foot_geoms].prod(-1)
    np.testing.assert_allclose(stiffness, 0.5 * FIELD_CONTACT_S, rtol=1e-6)
