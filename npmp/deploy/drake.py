"""The robot of `simulated.py` in Drake: another engine and contact model with the same drives and
sensors.

Drake solves servos and point contacts together (SAP); the ground is nearly rigid and its friction
does not creep. `frictionloss` is left out, as Drake's joints have no dry friction. Self-collision
is off.
"""

from __future__ import annotations

import logging

import mujoco
import numpy as np

from mocap_data.errors import importing
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot
from npmp.robots import Robot


class DrakeRobot(SimulatedRobot):
    """One robot on flat ground in Drake. State and torques are copied to `data`; MuJoCo is not
    stepped."""

    def __init__(self, robot: Robot, *, accelerometer: str = "imu", crouch: float = 1.0):
        """As `SimulatedRobot`. Raises InputError if Drake is absent."""
        with importing("simulator=drake needs Drake: pip install 'npmp[drake]'"):
            from pydrake import all as drake
        self._drake = drake
        logger = logging.getLogger("drake")  # its warnings of unsupported MJCF elements
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            self._build(robot)
        finally:
            logger.setLevel(level)
        super().__init__(robot, accelerometer=accelerometer, crouch=crouch)

    def _build(self, robot: Robot) -> None:
        """Build the plant: the robot on a half space."""
        drake = self._drake
        model = robot.model(visuals=False)
        builder = drake.DiagramBuilder()
        step_s = 1.0 / robot.physics_rate_hz
        plant, scene = drake.AddMultibodyPlantSceneGraph(builder, time_step=step_s)
        plant.set_discrete_contact_approximation(drake.DiscreteContactApproximation.kSap)
        spec = robot.spec(visuals=False)
        # unsupported, or different from MuJoCo's (drives)
        for part in (*spec.sensors, *spec.actuators):
            spec.delete(part)
        spec.compile()
        [instance] = drake.Parser(plant).AddModelsFromString(spec.to_xml(), "xml")
        # friction of feet on MuJoCo's ground, which has 1 and priority 0; the ground gets the same,
        # as Drake takes the mean of both
        feet = np.isin(model.geom_bodyid, [model.body(name).id for name in robot.foot_bodies])
        friction = float(model.geom_friction[feet, 0].min())
        if model.geom_priority[feet].min() <= 0:
            friction = max(friction, 1.0)
        plant.RegisterCollisionGeometry(
            plant.world_body(),
            drake.RigidTransform(),
            drake.HalfSpace(),
            "floor",
            drake.CoulombFriction(friction, friction),
        )
        geoms = drake.GeometrySet()
        for index in plant.GetBodyIndices(instance):
            geoms.Add(plant.GetCollisionGeometriesForBody(plant.get_body(index)))
        no_self_collision = drake.CollisionFilterDeclaration().ExcludeWithin(geoms)
        scene.collision_filter_manager().Apply(no_self_collision)
        joints = [plant.GetJointByName(name) for name in robot.joint_names]
        self._servos = []
        for joint, limit, kp, kd in zip(joints, robot.torque_limit, robot.kp, robot.kd):
            dof = model.jnt_dofadr[model.joint(joint.name()).id]
            joint.set_default_damping(model.dof_damping[dof])
            servo = plant.AddJointActuator(joint.name(), joint, limit)
            servo.set_default_rotor_inertia(model.dof_armature[dof])
            servo.set_controller_gains(drake.PdControllerGains(p=kp, d=kd))
            self._servos.append(servo)
        plant.Finalize()
        self._plant = plant
        self._instance = instance
        # indices of MuJoCo's qpos, qvel and actuator_force in Drake, where the quaternion precedes
        # the position, and the angular velocity, in the world, the linear one
        root = plant.GetBodyByName(robot.body_names[0])
        pose = root.floating_positions_start()
        speed = root.floating_velocities_start_in_v()
        angles = [joint.position_start() for joint in joints]
        self._qpos = np.r_[pose + 4 : pose + 7, pose : pose + 4, angles]
        rates = [joint.velocity_start() for joint in joints]
        self._qvel = np.r_[speed + 3 : speed + 6, speed : speed + 3, rates]
        self._torque = np.array([servo.input_start() for servo in self._servos])
        self._order = np.argsort(self._torque)  # the servos in Drake's order
        self._simulator = drake.Simulator(builder.Build())
        self._context = plant.GetMyMutableContextFromRoot(self._simulator.get_mutable_context())
        plant.get_actuation_input_port(instance).FixValue(self._context, np.zeros(len(joints)))

    def reset(self, crouch: float = 1.0) -> None:
        super().reset(crouch)
        positions = np.empty(len(self._qpos))
        positions[self._qpos] = self.data.qpos
        self._plant.SetPositions(self._context, positions)
        self._plant.SetVelocities(self._context, np.zeros(len(self._qvel)))
        self._step_count = 0
        self._simulator.get_mutable_context().SetTime(0.0)
        self._simulator.Initialize()

    def _set_gains(self, kp: FloatArray, kd: FloatArray) -> None:
        for servo, p, d in zip(self._servos, kp, kd):
            servo.set_controller_gains(self._drake.PdControllerGains(p=p, d=d))

    def _advance(self, setpoint: FloatArray) -> None:
        plant = self._plant
        context = self._context
        data = self.data
        desired = np.concatenate((setpoint[self._order], np.zeros(len(setpoint))))
        plant.get_desired_state_input_port(self._instance).FixValue(context, desired)
        self._step_count += 1
        self._simulator.AdvanceTo(self._step_count * self.dt)
        data.qpos[:] = plant.GetPositions(context)[self._qpos]
        # Drake's norm drifts by 0.01 in 20 s
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qvel[:] = plant.GetVelocities(context)[self._qvel]
        inverse = data.qpos[3:7] * [1, -1, -1, -1]
        mujoco.mju_rotVecQuat(data.qvel[3:6], data.qvel[3:6].copy(), inverse)
        data.actuator_force[:] = plant.get_net_actuation_output_port().Eval(context)[self._torque]
