"""The learned simulator: exact kinematics around a small network, and a loss that a perfect model
brings to zero."""

from __future__ import annotations

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.feet import Feet
from npmp.envs.state import RobotState, differentiate, integrate
from npmp.learning.world_model.losses import model_loss
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.model_fit import ModelFit
from npmp.learning.world_model.replay import ReplayBuffer, Step, Window
from npmp.robots import Robot
from tests.environments import imitation_env

HOME = torch.zeros(12)
DT = 0.02


def noisy_rollout(
    robot: Robot, motions: MotionSet, n: int, steps: int
) -> tuple[list[RobotState], list[Tensor]]:
    """States and setpoints of robots that follow the reference badly, without resets."""
    env = imitation_env(robot, motions, n)
    g = torch.Generator().manual_seed(0)
    states, setpoints = [env.state], []
    for _ in range(steps):
        action = (
            env.task.reference.at(env.task.frame).joint_pos
            - env.home
            + 0.1 * torch.randn(n, 12, generator=g)
        )
        states.append(env.step(action).state)
        setpoints.append(env.home + action)
    return states, setpoints


class Oracle:
    """A model that knows the true velocities of a rollout, and integrates them as the learned one
    does."""

    def __init__(self, states: list[RobotState]):
        self.states, self.t = states, 0

    def __call__(self, state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        before, after = self.states[self.t], self.states[self.t + 1]
        self.t += 1
        return integrate(
            RobotState.unpack(state), differentiate(before, after, DT), setpoint, DT
        ).pack()


def window_of(
    states: list[RobotState], setpoints: list[Tensor], valid: Tensor | None = None
) -> Window:
    n = len(states[0].root_pos)
    ones = torch.ones(len(setpoints), n)
    packed, none = torch.stack([s.pack() for s in states]), ones[..., None][..., :0]
    return Window(packed, torch.stack(setpoints), none, ones if valid is None else valid, none)


def test_loss_by_hand_and_masked() -> None:
    """A model that stands still, against robots of which the joints move 0.1 rad a step, all else
    at rest."""

    def still(state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        return state

    zeros = torch.zeros(2, 3)
    rest = RobotState.still(zeros, torch.eye(3).repeat(2, 1, 1), torch.zeros(2, 12))
    states = [rest._replace(joint_pos=torch.full((2, 12), 0.1 * t)) for t in range(4)]
    setpoints = [torch.zeros(2, 12)] * 3
    # joints weigh 1/2 and are summed: after t steps the error is 0.5 * 12 * 0.1 t = 0.6 t; mean
    # over three steps 1.2
    loss, log = model_loss(still, window_of(states, setpoints))
    torch.testing.assert_close(loss, torch.tensor(1.2))
    torch.testing.assert_close(log["model_joint_rad"], torch.tensor(0.3))
    # the second robot was reset after its first step: (0.6 + 1.2 + 1.8 + 0.6) / 4 = 1.05
    valid = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    loss, log = model_loss(still, window_of(states, setpoints, valid))
    torch.testing.assert_close(loss, torch.tensor(1.05))


def test_an_untrained_model_coasts(robot: Robot, motions: MotionSet) -> None:
    """Zero output is constant velocity: the network only learns what forces change."""
    model = WorldModel(HOME, DT, Feet(robot), (8,))
    torch.nn.init.zeros_(model.net[-1].weight)
    states, setpoints = noisy_rollout(robot, motions, 4, 2)
    state, after = states[1], model(states[1], setpoints[1])
    torch.testing.assert_close(after.joint_pos, state.joint_pos + DT * state.joint_vel_end)
    torch.testing.assert_close(after.joint_vel_end, state.joint_vel_end)
    expected = state.root_pos + DT * geometry.to_world(state.root_rot, state.root_vel_end)
    torch.testing.assert_close(after.root_pos, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(after.setpoint, setpoints[1])


def test_the_model_does_not_know_where_it_is_and_which_way_it_faces(
    robot: Robot, motions: MotionSet
) -> None:
    torch.manual_seed(0)
    model = WorldModel(HOME, DT, Feet(robot), (32,))
    states, setpoints = noisy_rollout(robot, motions, 4, 2)
    state = states[1]
    yaw, shift = geometry.yaw_matrix(torch.tensor(0.8)), torch.tensor([4.0, -1.0, 0.0])
    there = state._replace(
        root_pos=geometry.to_world(yaw, state.root_pos) + shift, root_rot=yaw @ state.root_rot
    )
    here, elsewhere = model(state, setpoints[1]), model(there, setpoints[1])
    expected = geometry.to_world(yaw, here.root_pos) + shift
    torch.testing.assert_close(elsewhere.root_pos, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(elsewhere.root_rot, yaw @ here.root_rot, atol=1e-5, rtol=0)
    for name in ("root_vel", "root_ang", "joint_vel", "accel"):
        torch.testing.assert_close(getattr(elsewhere, name), getattr(here, name), atol=1e-3, rtol=0)


def test_it_sees_how_high_and_how_fast_the_feet_are(robot: Robot, motions: MotionSet) -> None:
    """Against the feet's places in the world, a tenth of a millisecond apart."""
    states, setpoints = noisy_rollout(robot, motions, 4, 3)
    state = RobotState.unpack(states[2].pack().double())
    feet, soon = Feet(robot).double(), 1e-4
    model = WorldModel(HOME.double(), DT, feet, (8,), rough=True).double()
    under = torch.tensor([0.01, -0.02, 0.0, 0.05], dtype=torch.float64).expand(4, 4)
    ground = (about := torch.stack([under + 0.01 * k for k in range(5)], 1)).flatten(1)
    here = feet(state.root_pos, state.root_rot, state.joint_pos)
    there = feet(
        state.root_pos + soon * geometry.to_world(state.root_rot, state.root_vel_end),
        state.root_rot @ geometry.exp_so3(soon * state.root_ang_end),
        state.joint_pos + soon * state.joint_vel_end,
    )
    known, beside = model.features(state, setpoints[2].double(), ground)
    heights, speeds = known[:, -16:].split((4, 12), -1)
    wanted = here[:, :, 0, 2, None] - feet.radius - about.transpose(1, 2)
    found = (heights, beside.view(4, 4, 4))
    torch.testing.assert_close(found, (wanted[..., 0], wanted[..., 1:] / 0.3))
    wanted = geometry.to_local(state.root_rot.unsqueeze(1), (there - here)[:, :, 0] / soon)
    torch.testing.assert_close(speeds.view(4, 4, 3), wanted, atol=1e-3, rtol=1e-3)
    far_up = state._replace(root_pos=state.root_pos + 5.0)
    assert (model.features(far_up, setpoints[2].double(), ground)[0][:, -16:-12] == 0.3).all()
    climbed = state._replace(root_pos=state.root_pos + torch.tensor([0.0, 0.0, 0.4]))
    higher = model.features(climbed, setpoints[2].double(), ground + 0.4)
    torch.testing.assert_close(higher, (known, beside))


def test_a_model_goes_on_from_one_that_was_told_less(robot: Robot, motions: MotionSet) -> None:
    states, setpoints = noisy_rollout(robot, motions, 4, 2)
    torch.manual_seed(0)
    model, other, same = (WorldModel(HOME, DT, Feet(robot), (8,), k) for k in (2, 3, 2))
    told = torch.randn(4, 3)
    model.inputs.mean += 1.0
    before = model(states[1], setpoints[1], told[:, :2] * 0.0)
    assert other.take_over(model.state_dict())
    torch.testing.assert_close(other(states[1], setpoints[1], told).pack(), before.pack())
    assert same.take_over(model.state_dict())
    found, wanted = (m(states[1], setpoints[1], told[:, :2]).pack() for m in (same, model))
    torch.testing.assert_close(found, wanted)
    rough = WorldModel(HOME, DT, Feet(robot), (8,), 2, rough=True)  # level around each foot
    assert rough.take_over(model.state_dict())
    level = torch.cat((told[:, :2], torch.zeros(4, 20)), -1)
    torch.testing.assert_close(rough(states[1], setpoints[1], level).pack(), wanted)


def test_scales_make_inputs_and_outputs_unit(robot: Robot, motions: MotionSet) -> None:
    states, setpoints = noisy_rollout(robot, motions, 50, 2)
    model = WorldModel(HOME, DT, Feet(robot), (8,))
    velocity = differentiate(states[1], states[2], DT)
    none = setpoints[1][:, :0]
    model.fit_scales(states[1], setpoints[1], none, velocity)
    inputs = model.inputs(model.features(states[1], setpoints[1], none)[0])
    assert inputs.mean(0).abs().max() < 1e-3 and inputs.std(0).max() < 1.001
    change = model.changes(torch.zeros(1, 36))
    expected = -model.changes.mean.unsqueeze(0) / model.changes.std.unsqueeze(0)
    torch.testing.assert_close(change, expected)


def test_fitting_learns_the_simulator(robot: Robot, motions: MotionSet) -> None:
    torch.manual_seed(0)
    states, setpoints = noisy_rollout(robot, motions, 64, 24)
    nothing = torch.zeros(64, 0)
    blank = Step(*[nothing] * len(Step._fields))._replace(policy=())
    never = torch.zeros(64, dtype=torch.bool)

    def step(t: int) -> Step:
        first, before = torch.full((64,), t == 0), max(0, t - 1)
        squares = (20.0 * (setpoints[before] - states[before].joint_pos)).square()
        return blank._replace(
            is_first=first,
            free=never,
            state=states[t].pack(),
            setpoint=setpoints[t],
            currents=squares,
        )

    replay = ReplayBuffer(32, step(0))
    for t in range(len(setpoints)):
        replay.add(step(t))
    model = WorldModel(HOME, DT, Feet(robot), (64, 64), currents=True)
    fit = ModelFit(model, updates=12, batch=64, compile=False)
    g = torch.Generator().manual_seed(0)
    fit.take_scales(replay, g)
    course = [fit(replay, 3e-3, g) for _ in range(8)]
    losses, currents = ([log[name] for log in course] for name in ("model_loss", "model_current"))
    assert losses[-1] < 0.6 * losses[0] and currents[-1] < 0.6 * currents[0]
    rms = model.current_rms(states[5], setpoints[5], nothing) * model.current_scale
    true = 20.0 * (setpoints[5] - states[5].joint_pos).abs()
    assert (rms - true).abs().mean() < 0.3 * true.mean()
    blind = WorldModel(HOME, DT, Feet(robot), (64, 64))
    assert blind.take_over(model.state_dict()) and model.take_over(blind.state_dict())
    assert fit.optimizer.param_groups[0]["lr"] == 3e-3
