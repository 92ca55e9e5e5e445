"""A module that tracks a trot laid over the ground ahead: a planner of footsteps, and its policy.

    plan     footholds on even ground near a trot's, swings over the highest ground between
    frames   the root over the feet, pitched along them, lowered for legs that are too short; the
             legs by inverse kinematics
    latents  those of the module's encoder for the next frames

It reads the robot's sensors, from which `LegOdometry` estimates its state, and an `ElevationMap`.
Jenelten et al. 2024 (DTC) also plan footholds over a map; there a policy learns to reach them by
reinforcement learning, here a module that imitated motions over uneven ground tracks them without
further training.

Shapes: n robots, F = 4 feet, H frames ahead. Positions are in the frame of the odometry.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.core.gaussian import Gaussian
from npmp.core.tree import map_tree, where_tree
from npmp.envs.camera import DepthCamera
from npmp.envs.features import (
    frame_vectors,
    reference_points,
    relative,
    true_state,
    true_state_width,
)
from npmp.envs.feet import AROUND
from npmp.envs.kinematics import Kinematics
from npmp.envs.legs import Legs
from npmp.envs.policy import Observation
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import GRAVITY, RobotState
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.camera_map import CameraMap
from npmp.skills.elevation_map import ElevationMap
from npmp.skills.high_level_policy import PolicyContract, module_sha256
from npmp.skills.odometry import LegOdometry, Odometry, in_free_fall
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import Commands
from npmp.tasks.inputs import CLOCK, Clock, HeightMapErrors
from npmp.tasks.velocity import COMMAND_NAMES
from npmp.tasks.walk import Walk

# name by which commands take it, e.g. policy=footsteps
FOOTSTEPS = "footsteps"
# period of a stride over sqrt(length of a leg / g); share of it that a foot stands [D]
STRIDE = 2.5
DUTY = 0.55
# range of commands [m/s, m/s, rad/s] [D]
COMMANDS = ((-0.5, 1.0), (-0.3, 0.3), (-1.0, 1.0))
# time constants of the commanded velocity, of the root's height and pitch, and with which planned
# footholds move to the standing feet [s] [D]
COMMAND_S = 0.25
ROOT_S = 0.1
FEET_S = 0.3
# even ground around a foothold [m], and where no place in reach has it; cost of its unevenness,
# relative to that of a shift, and the largest, as two standard deviations of the heights around a
# foot [m]; cost of ground around a foot that is unknown [m]; a foot without a foothold steps down
# by this [m] [D]
EDGE_M = 0.045
NARROW_EDGE_M = 0.03
EVEN = 1.5
UNEVEN_M = 0.08
UNKNOWN_COST_M = 0.3
DOWN_M = 0.02
# a foot this far above or below the others, relative to the map, does not stand [m]
STANDS_M = 0.06
# slowest command that is walked [m/s], for yaw [rad/s]
STILL = 0.03
# shares of the root's mean height in imitation [D]:
# clearance of a swing, longest shift of a foothold, the step of its search, the deepest step
CLEARANCE = 0.18
FARTHEST = 0.9
SEARCH = 0.072
DEEPEST = 1.1
# lead over the robot from which the plan slows down, at which it stops, and its largest; the
# largest distance to the side
LEAD = 0.3
STOP = 0.72
LARGEST_LEAD = 1.1
ASIDE = 0.36
# share of the speed without a camera's images [D]
BLIND_SPEED = 0.5
# largest difference of heading [rad]
TURNED_RAD = 0.2
# distance of a foot from its hip above which the root is lowered, as a share of the leg; more than
# 1, as a root that moves less is tracked better [D]
FARTHEST_FOOT = 1.08
# a foot lowers the root no further than until its hip is at this height above it, as a share of the
# leg: over gaps a low root brings feet little closer [D]
LOWEST_HIP = 0.8
# cost of a shift sideways, relative to one along the heading
SIDEWAYS = 1.5
# cost of a place that no foot may take, above all shifts [m]
FORBIDDEN_M = 10.0
# points on a swing's way at which the ground is read
WAY = 12
# a swing rises and lowers in this share of its time, less if it waits [D]
RISE = 0.45
# of `swing_waits`: the longest wait, as a share of a swing; heights and lengths of swings [m] [D]
WAIT = 0.25
HIGHER_M = (0.03, 0.1)
SHORT_M = 0.15


class Window(NamedTuple):
    """The frames of a plan: now, and the next H."""

    vectors: Tensor  # (n, H + 1, p + 4, 3) `frame_vectors`
    joints: Tensor  # (n, H + 1, nu) [rad]
    stands: Tensor  # (n, H + 1, F) bool
    ground: Tensor  # (n, H + 1) mean height of the ground under the feet [m]


class Plan(NamedTuple):
    """A plan's state, H control steps ahead of the robots."""

    position: Tensor  # (n, 2) of the trot without shifts of footholds [m]
    yaw: Tensor  # (n,) [rad]
    velocity: Tensor  # (n, 3) in the heading frame, on its way to the command [m/s, rad/s]
    # (n, F, 3) points on the ground that the feet stand on, or left [m]; and where they are put
    lifted: Tensor
    foothold: Tensor
    # (n, F, 2) their shifts to level ground [m]
    shift_lifted: Tensor
    shift_foothold: Tensor
    highest: Tensor  # (n, F) highest ground on the way of a swing [m]
    # (n, F, 2) shares of a swing, at its start and end, in which it does not move horizontally
    waits: Tensor
    swings: Tensor  # (n, F) bool
    # (n, 2) low-passed mean height of the footholds, at most `_support_limit` [m], and slope along
    # the robot
    support: Tensor
    # of the latest frame
    root_pos: Tensor  # (n, 3) [m]
    root_rot: Tensor  # (n, 3, 3)
    window: Window
    odometry: Odometry
    map: Any  # `MapPose` or `CameraCells`


class FootstepContract(PolicyContract):
    """The contract of a policy that takes any sensor of the ground."""

    @property
    def input_settings(self) -> dict[str, Any]:
        """As of `PolicyContract`, without these sensors."""
        return {"command_range": self.command_range, "clock_s": self.clock_s}


class FootstepPlanner:
    """Plans of robots at velocity commands, and the latents that track them. `connect` comes first.

    The true state serves only to simulate the map, and as the pose and velocity in which an
    episode, or walking after another policy, begins.
    """

    def __init__(self, skill: SkillModule, robot: Robot):
        """Raises:
        InputError: for a robot without four legs of three joints, a module without an encoder.
        """
        skill.check_encoder(robot)
        device = skill.latent_range.device
        self.skill = skill
        self.robot = robot
        self.legs = Legs(robot).to(device)
        self.kinematics = Kinematics(robot.model()).to(device)
        self.points = torch.tensor(reference_points(robot), device=device)
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)
        self.horizon = skill.contract.context_horizon
        self.radius = robot.foot_radius
        # the mean pose in imitation: height above the ground, pitch, and feet under the root
        height, up, joints = mean_pose(skill)
        self.height_m = float(height)
        self.pitch = torch.atan2(up[0], up[2])
        feet = self.legs.at((self.home + joints)[None])[0][0]
        self.stance = (feet @ pitched(self.pitch).T)[:, :2]
        # the share of a stride at which feet touch down
        self.touchdown = 0.5 * (self.stance.prod(-1) > 0.0)
        shift = torch.arange(0.0, FARTHEST, SEARCH)
        across = torch.tensor([0.0, 2.0 * SEARCH, -2.0 * SEARCH])
        shifts = torch.cartesian_prod(torch.cat((shift, -shift[1:])), across)
        near = torch.linalg.vector_norm(shifts, dim=-1) <= FARTHEST
        self.shifts = self.height_m * shifts[near].to(device)
        sideways = self.shifts.new_tensor((1.0, SIDEWAYS))
        self.far = torch.linalg.vector_norm(self.shifts * sideways, dim=-1)
        self.around = torch.tensor(AROUND, device=device)

    def connect(
        self, dt: float, period_s: float, sensors: SensorConfig, terrain: ElevationMap | CameraMap
    ) -> None:
        """Set what is around the planner: the period of a control step and of a stride [s], the
        sensors' noise and delay, and the map."""
        self.dt = dt
        self.period_s = period_s
        self.odometry = LegOdometry(self.robot, self.kinematics, self.legs.feet, dt, sensors)
        self.map = terrain

    @property
    def stride_s(self) -> float:
        """Period of a stride of legs of this length [s]."""
        return round(STRIDE * math.sqrt(self.legs.length.mean().item() / GRAVITY), 2)

    def initial_state(self, n: int) -> Plan:
        """The state at the start of n episodes."""
        none = self.home.new_zeros(n, 3)
        level = torch.eye(3, device=none.device).expand(n, 3, 3)
        return self._begun(RobotState.still(none, level, self.home.expand(n, -1)))

    def track(
        self,
        observation: Observation,
        state: Plan,
        command: Tensor,
        phase: Tensor,
        true: RobotState,
    ) -> tuple[Gaussian, Plan]:
        """Latents that track the plan of this control step, and the plan.

        Args:
          command: (n, 3) [m/s, m/s, rad/s]. phase: (n,) of a stride in [0, 1). true: states in the
            frame of the map's ground.
        """
        # the accelerometer is before the vertical in `proprioception`
        drops = in_free_fall(GRAVITY * observation.proprioception[:, -6:-3])
        if bool(observation.is_first.any()):
            begun = self._dropped(self._begun(true), drops & observation.is_first)
            state = where_tree(observation.is_first, begun, state)
        plan, robots = self._localized(state, observation, true)
        feet = self._feet(robots)
        plan = self._on_feet(self._beside(plan, robots), feet, drops)
        plan = self._advanced(plan, command, self._pace(plan, robots), phase, drops)
        window = plan.window
        ahead = relative(window.vectors[:, 1:], window.joints[:, 1:], robots)
        above = robots.above(window.ground[:, 0])
        context = torch.cat((ahead, true_state(above, self.home)), -1)
        o = observation
        return self.skill.posterior(context, o.z_before, o.prior), plan

    # --- a plan and its robot ---

    def _begun(self, robots: RobotState) -> Plan:
        """Plans of robots that stand."""
        feet = self._feet(robots)
        none = torch.zeros_like(feet[..., :2])
        standing = feet - feet.new_tensor((0.0, 0.0, self.radius))
        ground = standing[..., 2]
        vectors = self._vectors(robots.root_pos, robots.root_rot, robots.joint_pos)
        stands = torch.ones_like(ground, dtype=torch.bool)
        window = Window(vectors, robots.joint_pos, stands, ground.mean(-1))
        count = self.horizon + 1
        # from the height and pitch of the robot to those of the plan
        support = robots.root_pos[:, 2] - self.height_m
        pitch = torch.asin(robots.root_rot[:, 2, 0].clamp(-1.0, 1.0)) - self.pitch
        return Plan(
            position=robots.root_pos[:, :2],
            yaw=geometry.yaw_of(robots.root_rot),
            velocity=torch.zeros_like(robots.root_pos),
            lifted=standing,
            foothold=standing,
            shift_lifted=none,
            shift_foothold=none,
            highest=ground,
            waits=none,
            swings=~stands,
            support=torch.stack((support, torch.tan(pitch)), -1),
            root_pos=robots.root_pos,
            root_rot=robots.root_rot,
            window=map_tree(lambda row: torch.stack([row] * count, 1), window),
            odometry=self.odometry.begin(robots),
            map=self.map.begin(robots, ground.mean(-1)),
        )

    def _dropped(self, plan: Plan, drops: Tensor) -> Plan:
        """Plans that have just begun. Those of robots that drop onto the mapped ground, (n,) bool,
        are of the landed robot in all frames, so that its legs are ready: footholds below the feet,
        the root above them."""
        below = self._height(plan, plan.lifted[..., :2])
        lands = drops & (plan.lifted[..., 2] - below > STANDS_M).any(-1)
        robot, foot = torch.nonzero(lands.unsqueeze(-1).expand_as(below), as_tuple=True)
        if not len(robot):
            return plan
        at = robot, foot
        under = plan.lifted[at][:, :2]
        # ground that is unknown is as high as the rest
        rest = below.nanmean(-1, keepdim=True)
        place = self._foothold(plan, under, torch.where(below.isnan(), rest, below)[at], robot)
        lifted = plan.lifted.index_put(at, place)
        shift = plan.shift_lifted.index_put(at, place[:, :2] - under)
        ground = lifted[..., 2].mean(-1)
        landed = plan._replace(
            lifted=lifted,
            foothold=lifted,
            shift_lifted=shift,
            shift_foothold=shift,
            support=torch.stack((ground, plan.support[:, 1]), -1),
        )
        none = torch.zeros_like(below)
        # once for the root's place, on which the limit of its height depends; then twice, at rest
        landed = self._framed(landed, none, drops)
        ground = torch.minimum(ground, self._support_limit(landed, lifted, none))
        landed = landed._replace(support=torch.stack((ground, plan.support[:, 1]), -1))
        for _ in range(2):
            landed = self._framed(landed, none, drops)
        window = map_tree(lambda rows: rows[:, -1:].expand_as(rows), landed.window)
        return where_tree(lands, landed._replace(window=window), plan)

    def _localized(
        self, plan: Plan, observation: Observation, true: RobotState
    ) -> tuple[Plan, RobotState]:
        """The plan with odometry and map of this step, and the estimated state. true: in which the
        map is simulated."""
        window = plan.window
        now = window.joints[:, 1]
        before = window.joints[:, 0]
        odometry, robots = self.odometry.update(
            plan.odometry,
            observation.proprioception,
            window.stands[:, 1],
            now,
            (now - before) / self.dt,
        )
        terrain = self.map.advance(plan.map, robots, true)
        return plan._replace(odometry=odometry, map=terrain), robots

    def _offset(self, plan: Plan, robots: RobotState) -> tuple[Tensor, Tensor]:
        """How far the plan's frame of now is ahead of the robots and to their left, along its
        heading, (n, 2) [m]; the axes of this heading, (n, 2, 2)."""
        root = plan.window.vectors[:, 1, 0]
        forwards = plan.window.vectors[:, 1, -4]
        yaw = torch.atan2(forwards[:, 1], forwards[:, 0])
        heading = geometry.yaw_matrix(yaw)[:, :2, :2]
        return geometry.to_local(heading, (root - robots.root_pos)[:, :2]), heading

    def _beside(self, plan: Plan, robots: RobotState) -> Plan:
        """The plan moved and turned to be near the robots, by a share, as it is H steps ahead."""
        share = 1.0 / self.horizon
        offset, heading = self._offset(plan, robots)
        most = self.height_m * offset.new_tensor((LARGEST_LEAD, ASIDE))
        back = geometry.to_world(heading, offset.clamp(-most, most) - offset)
        turn = geometry.yaw_of(robots.root_rot) - torch.atan2(heading[:, 1, 0], heading[:, 0, 0])
        turn = torch.atan2(torch.sin(turn), torch.cos(turn))
        turn = turn - turn.clamp(-TURNED_RAD, TURNED_RAD)
        return plan._replace(position=plan.position + share * back, yaw=plan.yaw + share * turn)

    def _on_feet(self, plan: Plan, feet: Tensor, drops: Tensor) -> Plan:
        """The plan with footholds moved towards the feet (n, F, 3) that stand now and in all of its
        frames; none of robots in free fall, (n,) bool."""
        under = feet - feet.new_tensor((0.0, 0.0, self.radius))
        height = self._height(plan, feet[..., :2])
        mapped = height.isfinite()
        above = under[..., 2] - torch.where(mapped, height, plan.lifted[..., 2])
        stands = plan.window.stands[:, 1:].all(1) & ~drops.unsqueeze(-1)
        # the map may be off
        middle = torch.where(stands, above, math.nan).nanmedian(-1, keepdim=True).values
        down = stands & ((above - middle).abs() < STANDS_M)
        # at rest feet follow in height together, so that one that hangs in the air is put down
        rise = under[..., 2] - plan.lifted[..., 2]
        together = torch.where(stands, rise, math.nan).nanmedian(-1, keepdim=True).values
        still = (plan.velocity.abs() < STILL).all(-1, keepdim=True)
        rise = torch.where(still, together, rise)
        onto = torch.cat((under[..., :2], (plan.lifted[..., 2] + rise).unsqueeze(-1)), -1)
        near = plan.lifted.lerp(onto, self.dt / FEET_S)
        lifted = torch.where(down.unsqueeze(-1), near, plan.lifted)
        return plan._replace(lifted=lifted, map=self.map.levelled(plan.map, above, down & mapped))

    def _pace(self, plan: Plan, robots: RobotState) -> Tensor:
        """Share of the speed at which the plan moves, (n,): 0 where it is far ahead, less where the
        robot is blind."""
        offset, _ = self._offset(plan, robots)
        velocity = plan.velocity[:, :2]
        speed = torch.linalg.vector_norm(velocity, dim=-1).clamp(min=STILL)
        lead = (offset * velocity).sum(-1) / speed / self.height_m
        blind = self.map.blind(plan.map)
        return ((STOP - lead) / (STOP - LEAD)).clamp(0.0, 1.0) * torch.where(
            blind, BLIND_SPEED, 1.0
        )

    # --- the plan ---

    def _advanced(
        self, plan: Plan, command: Tensor, pace: Tensor, phase: Tensor, drops: Tensor
    ) -> Plan:
        """The plan one control step later.

        Args:
          command: (n, 3). pace, phase: (n,) shares. drops: (n,) bool, robots in free fall.
        """
        dt = self.dt
        velocity = plan.velocity.lerp(command, dt / COMMAND_S)
        moved = geometry.to_world(geometry.yaw_matrix(plan.yaw)[:, :2, :2], velocity[:, :2])
        elapsed = pace * dt
        plan = plan._replace(
            velocity=velocity,
            position=plan.position + moved * elapsed.unsqueeze(-1),
            yaw=plan.yaw + velocity[:, 2] * elapsed,
        )
        still = (torch.cat((command, velocity), -1).abs() < STILL).all(-1)
        period = self.period_s
        # share of each foot's stride since its touchdown
        stride = (phase.unsqueeze(-1) - self.touchdown + self.horizon * dt / period) % 1.0
        begins = (stride >= DUTY) & (stride - dt / period < DUTY) & ~still.unsqueeze(-1)
        swings = (stride >= DUTY) & (plan.swings | begins)
        plan = self._stepped(plan, swings, begins, stride, moved)
        share = torch.where(swings, (stride - DUTY) / (1.0 - DUTY), 0.0)
        return self._framed(plan, share, drops)

    def _stepped(
        self, plan: Plan, swings: Tensor, begins: Tensor, stride: Tensor, moved: Tensor
    ) -> Plan:
        """The plan with feet landed, and footholds for the swings that begin.

        Args:
          swings, begins: (n, F) bool. stride: (n, F) share since touchdown in the latest frame.
          moved: (n, 2) velocity in the world [m/s].
        """
        lands = (plan.swings & ~swings).unsqueeze(-1)
        lifted = torch.where(lands, plan.foothold, plan.lifted)
        shift_lifted = torch.where(lands, plan.shift_foothold, plan.shift_lifted)
        # the trot's foothold is under the leg in the middle of the stance
        until = ((1.0 - stride + 0.5 * DUTY) * self.period_s).unsqueeze(-1)
        heading = plan.yaw.unsqueeze(-1) + plan.velocity[:, 2:] * until[..., 0]
        # closer together on a slope, as the legs' hips are
        level = torch.rsqrt(1.0 + plan.support[:, 1:].square())
        stance = self.stance * torch.stack((level, torch.ones_like(level)), -1)
        under = geometry.yaw_matrix(heading)[..., :2, :2] @ stance.unsqueeze(-1)
        trot = plan.position.unsqueeze(1) + moved.unsqueeze(1) * until + under.squeeze(-1)
        foothold = plan.foothold
        shift = plan.shift_foothold
        highest = plan.highest
        waits = plan.waits
        robot, foot = torch.nonzero(begins, as_tuple=True)
        if len(robot):
            at = robot, foot
            place = self._foothold(plan, trot[at], lifted[at][:, 2], robot)
            share = torch.linspace(0.0, 1.0, WAY, device=place.device).unsqueeze(-1)
            way = torch.lerp(lifted[at][:, None, :2], place[:, None, :2], share)
            foothold = foothold.index_put(at, place)
            shift = shift.index_put(at, place[:, :2] - trot[at])
            over = self.map.highest_at(plan.map, way, robot).nan_to_num(-math.inf).amax(-1)
            highest = highest.index_put(at, over)
            waits = waits.index_put(at, swing_waits(lifted[at], place, over))
        return plan._replace(
            lifted=lifted,
            foothold=foothold,
            shift_lifted=shift_lifted,
            shift_foothold=shift,
            highest=highest,
            waits=waits,
            swings=swings,
        )

    def _foothold(self, plan: Plan, trot: Tensor, before: Tensor, robot: Tensor) -> Tensor:
        """The place (k, 3) [m] near a trot's foothold (k, 2) of the least cost, for its distance
        and unevenness; that foothold, at most a little lower than `before`, where there is none.

        before: (k,) height of the last foothold [m]. robot: (k,) index.
        """
        place, valid = self._search(plan, trot, before, robot, EDGE_M)
        if not bool(valid.all()):
            rest = (~valid,)
            narrow = self._search(plan, trot[rest], before[rest], robot[rest], NARROW_EDGE_M)
            place = place.index_put(rest, narrow[0])
            valid = valid.index_put(rest, narrow[1])
        height = place[:, 2]
        height = torch.where(valid, height, torch.maximum(height, before - DOWN_M))
        height = torch.where(height.isnan(), before, height)
        return torch.cat((place[:, :2], height.unsqueeze(-1)), -1)

    def _search(
        self, plan: Plan, trot: Tensor, before: Tensor, robot: Tensor, margin_m: float
    ) -> tuple[Tensor, Tensor]:
        """The place (k, 3) of the least cost whose ground is even within `margin_m` [m] of the
        foot, and whether there is one, (k,) bool; else the trot's, whose height may be NaN.

        trot, before, robot: as of `_foothold`.
        """
        turn = geometry.yaw_matrix(plan.yaw[robot])[:, :2, :2].transpose(-1, -2)
        places = trot.unsqueeze(1) + self.shifts @ turn  # (k, s, 2)
        around = places.unsqueeze(-2) + (self.radius + margin_m) * self.around
        heights = self.map.height_at(plan.map, around, robot)
        height = heights.nanmean(-1)
        uneven = 2.0 * (heights - height.unsqueeze(-1)).square().nanmean(-1).sqrt()
        step = height - before.unsqueeze(-1)
        allowed = (uneven < UNEVEN_M) & (step.abs() < DEEPEST * self.height_m)
        cost = self.far + EVEN * uneven + UNKNOWN_COST_M * heights.isnan().float().mean(-1)
        cost = torch.where(allowed, cost, FORBIDDEN_M + self.far)
        best = cost.argmin(-1, keepdim=True)
        place = places.gather(1, best.unsqueeze(-1).expand(-1, -1, 2)).squeeze(1)
        valid = cost.gather(1, best).squeeze(1) < FORBIDDEN_M
        return torch.cat((place, height.gather(1, best)), -1), valid

    def _framed(self, plan: Plan, share: Tensor, drops: Tensor) -> Plan:
        """The plan with its next frame. share: (n, F) elapsed share of a swing; 0 in stance."""
        start, end = plan.waits.unbind(-1)
        moving = 1.0 - start - end
        along = _smooth(((share - start) / moving).clamp(0.0, 1.0)).unsqueeze(-1)
        under = torch.lerp(plan.lifted, plan.foothold, along)
        shift = torch.lerp(plan.shift_lifted, plan.shift_foothold, along)
        below, onto = plan.lifted[..., 2], plan.foothold[..., 2]
        top = torch.maximum(plan.highest, torch.maximum(below, onto))
        top = top + CLEARANCE * self.height_m
        rise = share / (RISE * (1.0 - start))
        fall = (1.0 - share) / (RISE * (1.0 - end))
        rising = torch.lerp(below, top, _smooth(rise.clamp(max=1.0)))
        falling = torch.lerp(onto, top, _smooth(fall.clamp(max=1.0)))
        height = torch.where(share < 0.5, rising, falling)
        sole = torch.cat((under[..., :2], (height + self.radius).unsqueeze(-1)), -1)

        x = self.stance[:, 0] - self.stance[:, 0].mean()
        slope = (under[..., 2] * x).sum(-1) / x.square().sum()
        # a robot in free fall cannot pitch: its legs reach for the ground
        slope = torch.where(drops, plan.support[:, 1], slope)
        height = torch.minimum(under[..., 2].mean(-1), self._support_limit(plan, under, share))
        support = torch.stack((height, slope), -1)
        support = plan.support.lerp(support, self.dt / ROOT_S)
        up = support[:, :1] + self.height_m
        root_pos = torch.cat((plan.position + shift.mean(1), up), -1)
        pitch = pitched(self.pitch + torch.atan(support[:, 1]))
        root_rot = geometry.yaw_matrix(plan.yaw) @ pitch
        local = (sole - root_pos.unsqueeze(1)) @ root_rot
        joints = self.legs.reach(local, plan.window.joints[:, -1])
        vectors = self._vectors(root_pos, root_rot, joints, plan)
        window = map_tree(
            lambda rows, row: torch.cat((rows[:, 1:], row.unsqueeze(1)), 1),
            plan.window,
            Window(vectors, joints, ~plan.swings, under[..., 2].mean(-1)),
        )
        return plan._replace(support=support, root_pos=root_pos, root_rot=root_rot, window=window)

    def _support_limit(self, plan: Plan, under: Tensor, share: Tensor) -> Tensor:
        """Upper bound (n,) [m] of the height in `support`, so that the legs are not much too short.
        A swinging foot counts where it lands, at the time it lands, at full speed.

        under: (n, F, 3) points on the ground. share: (n, F) elapsed share of a swing.
        """
        heading = geometry.yaw_matrix(plan.yaw)[:, :2, :2]
        velocity = geometry.to_world(heading, plan.velocity[:, :2]).unsqueeze(1)
        lands_s = torch.where(plan.swings, (1.0 - share) * (1.0 - DUTY) * self.period_s, 0.0)
        foot = torch.where(plan.swings.unsqueeze(-1), plan.foothold, under)
        # of the frame before, as the height is part of the next
        hips = self.legs.hips @ plan.root_rot.transpose(-1, -2)
        hip = plan.root_pos[:, None, :2] + hips[..., :2] + velocity * lands_s.unsqueeze(-1)
        across = (foot[..., :2] - hip).square().sum(-1)
        above = ((FARTHEST_FOOT * self.legs.length).square() - across).clamp(min=0.0).sqrt()
        above = torch.maximum(above, LOWEST_HIP * self.legs.length)
        root = foot[..., 2] + self.radius + above - hips[..., 2]
        return root.amin(-1) - self.height_m

    def _vectors(
        self, root_pos: Tensor, root_rot: Tensor, joints: Tensor, before: Plan | None = None
    ) -> Tensor:
        """`frame_vectors` of a pose, with the velocity since the frame before; None: at rest."""
        points = self.kinematics(root_pos, root_rot, joints).position[:, self.points]
        velocity = turn = torch.zeros_like(root_pos)
        if before is not None:
            velocity = root_pos - before.root_pos
            turn = geometry.log_so3(before.root_rot.transpose(-1, -2) @ root_rot)
            turn = geometry.to_world(before.root_rot, turn)
        dt = 1.0 / self.skill.contract.control_rate_hz
        return frame_vectors(points, root_rot, velocity / dt, turn / dt)

    def _feet(self, robots: RobotState) -> Tensor:
        """Centres of the feet, (n, F, 3) [m]."""
        return self.legs.feet(robots.root_pos, robots.root_rot, robots.joint_pos)[:, :, 0]

    def _height(self, plan: Plan, position: Tensor) -> Tensor:
        """Height of the ground (n, ...) [m] at positions (n, ..., 2); NaN where there is none."""
        robots = torch.arange(len(position), device=position.device)
        return self.map.height_at(plan.map, position, robots)


class FootstepPolicy(FootstepPlanner):
    """A planner as a policy of tasks with velocity commands and a clock, whose period is a
    stride's. A rollout calls `bind` first.

    `contract`: of a walking policy without a network.
    """

    def __init__(self, skill: SkillModule, robot: Robot, *, module: str = ""):
        """module: `module_sha256` of the module's folder. Raises as `FootstepPlanner`."""
        super().__init__(skill, robot)
        self.contract = FootstepContract(
            robot=robot.name,
            task=Walk.name,
            module_sha256=module,
            latent_dim=skill.latent_dim,
            alpha=skill.prior.alpha,
            observation=skill.contract.observation,
            command=list(COMMAND_NAMES),
            command_range=[list(pair) for pair in COMMANDS],
            extra_inputs=list(CLOCK),
            clock_s=self.stride_s,
            net={},
            latent_bound=skill.latent_range.tolist(),
        )

    @staticmethod
    def over_module(module: str | None, robot: Robot, device: str = "cpu") -> FootstepPolicy:
        """The policy over a module, a shipped one's name or a folder.

        Raises: InputError without a module, for one of another robot, and as `FootstepPlanner`.
        """
        if module is None:
            raise InputError(f"policy={FOOTSTEPS}: needs module=, e.g. module=go2_ground")
        folder = modules.find(module)
        skill = SkillModule.load(folder, device)
        skill.check_robot(robot)
        return FootstepPolicy(skill, robot, module=module_sha256(folder))

    def bind(self, env: TaskEnv[Any]) -> None:
        """Set the environment whose commands and clock are read, and whose ground is mapped.

        Raises:
          InputError: for a task without velocity commands or a clock, and as `ElevationMap`.
        """
        clock = env.task.part(Clock)
        if clock is None or not isinstance(env.task.commands, Commands):
            raise InputError(
                f"task '{env.task.name}': footsteps need velocity commands and a clock; set "
                f"task.clock_s={self.contract.clock_s:g}"
            )
        self.env = env
        self.clock = clock
        # of tasks that are walking, or contain it
        walk = getattr(env.task.config, "walk", env.task.config)
        camera = env.task.part(DepthCamera)
        terrain: ElevationMap | CameraMap
        if camera is not None:
            terrain = CameraMap(camera, env.dt)
        else:
            errors = getattr(walk, "map", HeightMapErrors())
            terrain = ElevationMap(env.ground, env.dt, errors, env.generator)
        self.connect(env.dt, clock.period_s, env.robots.sensing.config, terrain)

    def check_task(self, task: Task | type[Task]) -> None:
        """As `HighLevelPolicy.check_task`, without a check of inputs: it has its own map."""
        self.contract.check_task(task)

    def step(self, observation: Observation, state: Plan) -> tuple[Gaussian, Plan]:
        """As `Policy.step`: latents that track the plan."""
        true = self.env.ground.integrated(observation.state)
        command = self.env.task.commands.current
        return self.track(observation, state, command, self.clock.phase, true)

    def markers(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Of the first robot, after `step` and before that of the environment: footholds (F, 3),
        and points of ground that its camera has seen, (k, 3); in the world [m]."""
        true = self.env.state
        estimated = plan.odometry
        turn = geometry.yaw_of(true.root_rot[:1]) - geometry.yaw_of(estimated.root_rot[:1])
        points = torch.cat((plan.foothold[0], self.map.points(plan.map, 0)))
        local = points - estimated.root_pos[0]
        world = geometry.to_world(geometry.yaw_matrix(turn), local) + true.root_pos[0]
        feet = plan.foothold.shape[1]
        return world[:feet], world[feet:]


def mean_pose(skill: SkillModule) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of the poses that a module imitated: height above the ground [m], the vertical in the
    root's frame (3,), joint angles minus home (nu,) [rad]."""
    nu = len(skill.contract.joint_names)
    pose = skill.context_scale.mean[-true_state_width(nu) :]
    return pose[0], pose[1:4], pose[4 : 4 + nu]


def swing_waits(lifted: Tensor, foothold: Tensor, highest: Tensor) -> Tensor:
    """Shares of a swing, in [0, WAIT], in which a foot beside higher ground rises before it moves
    horizontally, and lowers after it has, (k, 2).

    They grow with the height above the foot, between those of `HIGHER_M`, and shrink with the
    length of the swing from `SHORT_M` to twice that, as long swings need their time.

    Args:
      lifted, foothold: (k, 3) [m]. highest: (k,) the highest ground on the way [m]; may be -inf.
    """
    length = torch.linalg.vector_norm(foothold[:, :2] - lifted[:, :2], dim=-1, keepdim=True)
    short = (2.0 - length / SHORT_M).clamp(0.0, 1.0)
    higher = highest.unsqueeze(-1) - torch.stack((lifted[:, 2], foothold[:, 2]), -1)
    low, high = HIGHER_M
    return WAIT * short * ((higher - low) / (high - low)).clamp(0.0, 1.0)


def pitched(angle: Tensor) -> Tensor:
    """Rotation that lifts the front by an angle (...) [rad], (..., 3, 3)."""
    none = torch.zeros_like(angle)
    return geometry.exp_so3(torch.stack((none, -angle, none), -1))


def _smooth(share: Tensor) -> Tensor:
    """A step from 0 to 1 whose velocity and acceleration vanish at both ends."""
    return share**3 * (10.0 + share * (6.0 * share - 15.0))
