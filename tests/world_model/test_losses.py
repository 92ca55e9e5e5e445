"""Imagination: the same functions on the same numbers as in the simulator, and sums that can be
done by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.envs.features import ReferenceFeatures, encoder_context, proprioception
from npmp.envs.kinematics import Kinematics
from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.sensing import Sensing, SensorConfig
from npmp.envs.state import RobotState, StepVelocity, differentiate, integrate
from npmp.nets import DecoderState
from npmp.nets.prior import prior_std
from npmp.robots import Robot
from npmp.tasks.rewards import TrackingWeights, tracking_error, tracking_loss
from npmp.world_model.imagination import Imagination, Imagined
from npmp.world_model.posture import PostureRange, SlicedWasserstein
from npmp.world_model.replay import Start
from tests.environments import imitation_env


def moments(state: RobotState, frame: Tensor, last_frame: Tensor, z: Tensor) -> Start:
    """Moments to imagine from, with an empty memory."""
    empty = torch.zeros(len(frame), 1)
    nothing = torch.zeros(len(frame), 0)
    return Start(
        state.pack(), state.setpoint, frame, last_frame, z, empty, empty, nothing, nothing, nothing
    )


def ideal(home: Tensor | None = None) -> Sensing:
    """Senses without noise, delay or calibration error."""
    return Sensing(SensorConfig(), torch.zeros(12) if home is None else home, 0.02)


def test_imagined_and_real_robots_are_seen_alike(robot: Robot, motions: MotionSet) -> None:
    """A model that knows the simulator's velocities, run through the imagination's code: contexts,
    proprioception, poses and errors are those of the real rollout."""
    n, steps = 6, 12
    env = imitation_env(robot, motions, n)
    env.reset(clip=torch.tensor([0] * 3 + [1] * 3), frame=torch.tensor([0, 40, 80, 100, 150, 245]))
    features = ReferenceFeatures(robot, env.task.reference)
    g = torch.Generator().manual_seed(0)
    actions = 0.1 * torch.randn(steps, n, 12, generator=g)
    real: list[dict[str, Tensor]] = []
    velocities: list[StepVelocity] = []
    begin = moments(
        env.state, env.task.frame.clone(), env.task.last_frame.clone(), torch.zeros(n, 2)
    )
    for t in range(steps):
        seen = {
            "context": encoder_context(
                features, env.state, env.task.frame, env.task.last_frame, env.home
            ),
            "proprioception": proprioception(env.state, env.home),
        }
        before, step = env.state, env.step(actions[t])
        velocities.append(differentiate(before, step.state, env.dt))
        real.append(seen | {"state": step.state.pack(), "error": step.error})

    imagined: list[dict[str, Tensor]] = []

    def encode(context: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        imagined.append({"context": context})
        return torch.zeros_like(z), torch.full_like(z, prior_std(0.95))

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        imagined[-1]["proprioception"] = observation
        return actions[len(imagined) - 1], memory

    def model(state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
        after = integrate(
            state, velocities[len(imagined) - 1], setpoint, env.dt, env.robots.imu_cross
        )
        imagined[-1]["state"] = after.pack()
        return after

    model.home = env.home  # type: ignore[attr-defined]
    kinematics = Kinematics(robot.model())

    def reference_at(frame: Tensor) -> ReferenceFrames:
        frames = env.task.reference.at(frame)  # of all steps
        state = RobotState.unpack(torch.stack([step["state"] for step in imagined]))
        poses = kinematics(state.root_pos, state.root_rot, state.joint_pos)
        for step, error in zip(
            imagined, tracking_error(poses, state.joint_pos, frames), strict=True
        ):
            step["error"] = error
        return frames

    skill: Any = SimpleNamespace(encode=encode, decode=decode, alpha=0.95)
    imagination = Imagination(
        skill, model, ideal(env.home), features, reference_at, 1.0, TrackingWeights()  # type: ignore[arg-type]
    )  # fmt: skip
    result = imagination(begin, steps, torch.Generator().manual_seed(0))
    for t in range(steps):
        for name in ("context", "proprioception", "state", "error"):
            torch.testing.assert_close(
                imagined[t][name],
                real[t][name],
                atol=3e-3,
                rtol=0,
                msg=lambda m, k=name: f"{k}: {m}",
            )
        # poses are exact; what is off above is accelerations, second differences of rounded
        # positions
        torch.testing.assert_close(imagined[t]["error"], real[t]["error"], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.kl, torch.tensor(0.0), atol=1e-6, rtol=0)


def still(n: int) -> RobotState:
    return RobotState.still(torch.zeros(n, 3), torch.eye(3).repeat(n, 1, 1), torch.zeros(n, 12))


def frames_like(state: RobotState, **change: Tensor) -> ReferenceFrames:
    values = {k: torch.zeros(1) for k in ReferenceFrames._fields}
    values |= {
        "root_pos": state.root_pos, "root_rot": state.root_rot, "joint_pos": state.joint_pos,
        "root_vel_w": torch.zeros_like(state.root_pos), "root_ang_w": torch.zeros_like(state.root_pos),
        "joint_vel": torch.zeros_like(state.joint_pos),
    }  # fmt: skip
    return ReferenceFrames(**(values | change))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("root_pos", torch.tensor([[0.1, 0.0, -0.1]]), 4.0 * 0.2),
        # a quarter turn about z: entries change by 1 four times
        (
            "root_rot",
            torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]),
            1.0 * 4.0,
        ),
        ("joint_pos", torch.full((1, 12), 0.1), 0.5 * 1.2),
        ("root_vel_w", torch.tensor([[1.0, 0.0, 0.0]]), 0.2),
        ("root_ang_w", torch.tensor([[0.0, 0.0, 2.0]]), 0.1 * 2.0),
        ("joint_vel", torch.full((1, 12), -1.0), 0.02 * 12.0),
    ],
)
def test_tracking_loss_by_hand(field: str, value: Tensor, expected: float) -> None:
    state = still(1)
    loss = tracking_loss(state, state, frames_like(state, **{field: value}), TrackingWeights())
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_effort_and_smoothness_by_hand() -> None:
    before = still(1)._replace(setpoint=torch.full((1, 12), 0.3))
    after = still(1)._replace(setpoint=torch.full((1, 12), 0.5))
    # effort: |0.5 - 0| * 12 * 0.02; smoothness: |0.5 - 0.3| * 12 * 0.02
    loss = tracking_loss(after, before, frames_like(after), TrackingWeights())
    torch.testing.assert_close(loss, torch.tensor([0.12 + 0.048]))


def test_imagining_by_hand(robot: Robot, motions: MotionSet) -> None:
    """Two robots, three steps, discount 1/2; the second one's clip ends after its first step.

    The model does nothing. The first robot's reference is 0.25 m to its side, so each step costs 4
    * 0.25 = 1; the second's is twice as far: 2. The encoder shifts one of the first's two latent
    dimensions by the prior's deviation, 1/2 nat a step, and by twice that for the second: 2 nats.
    The steps weigh 1 + 1/2 + 1/4 and 1, together 2.75.
    """
    state = still(2)
    start = moments(state, torch.tensor([5, 9]), torch.tensor([50, 10]), torch.zeros(2, 2))
    asked: list[list[list[int]]] = []

    def reference_at(frame: Tensor) -> ReferenceFrames:
        asked.append(frame.tolist())
        return frames_like(state, root_pos=torch.tensor([[0.0, 0.25, 0.0], [0.0, 0.5, 0.0]]))

    std = prior_std(0.95)
    mu = torch.tensor([[std, 0.0], [2 * std, 0.0]])

    class Model:
        home = torch.zeros(12)

        def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
            return state

    skill: Any = SimpleNamespace(
        encode=lambda context, z: (mu, torch.full((2, 2), std)),
        decode=lambda z, observation, memory: (torch.zeros(2, 12), memory),
        alpha=0.95,
    )
    features = ReferenceFeatures(robot, Reference(robot, motions))
    model: Any = Model()
    generator = torch.Generator().manual_seed(0)
    result = Imagination(skill, model, ideal(), features, reference_at, 0.5, TrackingWeights())(
        start, 3, generator
    )
    assert asked == [[[6, 10], [7, 10], [8, 10]]]
    torch.testing.assert_close(result.tracking, torch.tensor((1.75 * 1.0 + 2.0) / 2.75))
    torch.testing.assert_close(result.kl, torch.tensor((1.75 * 0.5 + 2.0) / 2.75))
    torch.testing.assert_close(result.sigma, torch.tensor(std))


def test_latents_follow_eq_3_through_the_rollout(robot: Robot, motions: MotionSet) -> None:
    seen: list[Tensor] = []

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return torch.zeros(1, 12), memory

    def model(state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
        return state

    model.home = torch.zeros(12)  # type: ignore[attr-defined]
    skill: Any = SimpleNamespace(
        encode=lambda context, z: (torch.full((1, 4), 0.1), torch.full((1, 4), 0.2)),
        decode=decode,
        alpha=0.9,
    )
    start = moments(still(1), torch.tensor([0]), torch.tensor([50]), torch.full((1, 4), 2.0))
    features = ReferenceFeatures(robot, Reference(robot, motions))
    imagination = Imagination(
        skill, model, ideal(), features, lambda f: frames_like(still(1)), 0.9, TrackingWeights()  # type: ignore[arg-type]
    )  # fmt: skip
    imagination(start, 3, torch.Generator().manual_seed(7))
    g, z = torch.Generator().manual_seed(7), torch.full((1, 4), 2.0)
    for found in seen:
        z = 0.9 * z + 0.1 + 0.2 * torch.randn(1, 4, generator=g)
        torch.testing.assert_close(found, z)


class Sleeper:
    """A model of robots on which nothing acts: they stay as they are."""

    home = torch.zeros(12)

    def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
        return state


def test_robots_that_act_from_the_prior_by_hand(robot: Robot, motions: MotionSet) -> None:
    """Two robots, two steps, discount 1/2: the first tracks, the second has no reference left.

    The range of postures is a height of at least 0.25 m; both lie at 0, which costs 4 * 0.25 = 1 a
    step, but only where nobody tracks. The encoder's mu of 1 and sigma of 2 are not the second's,
    which draws z = alpha z + sqrt(1 - alpha^2) noise.
    """
    state, std = still(2), prior_std(0.9)
    start = moments(state, torch.tensor([5, 7]), torch.tensor([50, 7]), torch.ones(2, 4))
    seen: list[Tensor] = []

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return torch.zeros(2, 12), memory

    skill: Any = SimpleNamespace(
        encode=lambda context, z: (torch.ones(2, 4), torch.full((2, 4), 2.0)),
        decode=decode,
        alpha=0.9,
    )
    postures = PostureRange(frames_like(still(3), root_pos=torch.tensor([[0.0, 0.0, 0.25]] * 3)))
    features, model = ReferenceFeatures(robot, Reference(robot, motions)), Sleeper()
    side = torch.tensor([[0.0, 0.5, 0.0], [0.0, 9.0, 0.0]])

    def imagined(postures: PostureRange | None) -> Imagined:
        rollout = Imagination(
            skill, model, ideal(), features, lambda frame: frames_like(state, root_pos=side), 0.5, TrackingWeights(),  # type: ignore[arg-type]
            postures,
        )  # fmt: skip
        return rollout(start, 2, torch.Generator().manual_seed(3))

    result = imagined(postures)
    torch.testing.assert_close(result.posture, torch.tensor(1.0))
    assert result.sigma == 2.0  # the encoder's, of the first
    # the first alone counts for the rest: 4 * 0.5 a step; KL of each of four dimensions (r + 1 / v
    # - 1 - log r) / 2, r = 4 / v
    torch.testing.assert_close(result.tracking, torch.tensor(2.0))
    ratio, variance = 4.0 / std**2, std**2
    torch.testing.assert_close(
        result.kl, torch.tensor(2.0 * (ratio + 1.0 / variance - 1.0 - math.log(ratio)))
    )
    noise, z = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(3)), torch.ones(2, 4)
    for k in range(2):
        z = 0.9 * z + torch.stack((1.0 + 2.0 * noise[k, 0], std * noise[k, 1]))
        torch.testing.assert_close(seen[k], z)
    seen.clear()
    without = imagined(None)
    assert without.posture == 0.0
    torch.testing.assert_close(without.kl, result.kl)
    torch.testing.assert_close(seen[0][1], 0.9 + 1.0 + 2.0 * noise[0, 1])  # the encoder's, then


def test_a_crowd_that_acts_from_the_prior_is_judged_as_one(
    robot: Robot, motions: MotionSet
) -> None:
    """Three robots at rest, of which the first tracks: `wasserstein` is of the other two, in all
    steps."""
    reference = Reference(robot, motions)
    wasserstein = SlicedWasserstein(reference)
    states = reference.state(torch.tensor([5, 20, 60]))
    start = moments(states, torch.tensor([5, 7, 9]), torch.tensor([50, 7, 9]), torch.ones(3, 4))
    skill: Any = SimpleNamespace(
        encode=lambda context, z: (torch.zeros(3, 4), torch.ones(3, 4)),
        decode=lambda z, observation, memory: (torch.zeros(3, 12), memory),
        alpha=0.9,
    )
    rollout = Imagination(
        skill, Sleeper(), ideal(), ReferenceFeatures(robot, reference), lambda frame: frames_like(states), 0.5,  # type: ignore[arg-type]
        TrackingWeights(), wasserstein=wasserstein,
    )  # fmt: skip
    seen: list[RobotState] = []
    found = SlicedWasserstein.forward
    wasserstein.forward = lambda state, generator: (
        seen.append(state) or found(wasserstein, state, generator)
    )  # type: ignore[method-assign, func-returns-value]
    result = rollout(start, 2, torch.Generator().manual_seed(3))
    assert torch.equal(seen[0].joint_pos, states.joint_pos[[1, 2]].expand(2, 2, 12))
    assert result.wasserstein > 0.0
    assert result.posture == 0.0  # no range of postures was given


@pytest.mark.parametrize("asked", [True, False])
def test_staying_up_teaches_the_decoder_alone(
    robot: Robot, motions: MotionSet, asked: bool
) -> None:
    """The setpoint's first entry raises the robot; the action is the decoder's one weight times z."""
    weight, shift = (torch.tensor(value, requires_grad=True) for value in (0.5, 0.1))

    class Lift(Sleeper):
        def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
            return state._replace(root_pos=state.root_pos + setpoint[:, :3])

    skill: Any = SimpleNamespace(
        encode=lambda context, z: (shift.expand(2, 4), torch.ones(2, 4)),
        decode=lambda z, observation, memory: (weight * z.repeat(1, 3), memory),
        alpha=0.9,
    )
    postures = (
        PostureRange(frames_like(still(3), root_pos=torch.tensor([[0.0, 0.0, 99.0]] * 3)))
        if asked
        else None
    )
    start = moments(still(2), torch.tensor([7, 7]), torch.tensor([7, 7]), torch.ones(2, 4))
    rollout = Imagination(
        skill, Lift(), ideal(), ReferenceFeatures(robot, Reference(robot, motions)),  # type: ignore[arg-type]
        lambda frame: frames_like(still(2)), 0.9, TrackingWeights(), postures,
    )  # fmt: skip
    result = rollout(start, 2, torch.Generator().manual_seed(0))
    assert result.posture.requires_grad == asked
    if asked:
        result.posture.backward()
        assert weight.grad is not None and weight.grad != 0.0
        assert shift.grad is None or shift.grad == 0.0


def test_burning_in_by_hand(robot: Robot, motions: MotionSet) -> None:
    """Three robots, three real steps; the memory's hidden part sums the latents that were used, its
    cell counts steps.

    A moment's z is that of the step before, so the steps' own are those of moments 1, 2, 3. The
    second robot began anew at moment 2, where what is stored is 100; the third at the first moment,
    which changes nothing.
    """
    moment = torch.arange(4.0).view(4, 1, 1)
    nothing, frame = torch.zeros(4, 3, 0), torch.zeros(4, 3, dtype=torch.long)
    stored = torch.full((4, 3, 1), 5.0)
    stored[2] = 100.0
    packed = still(3).pack().expand(4, 3, -1)
    z = (10.0**moment).expand(4, 3, 1)
    stretch = Start(
        packed,
        torch.zeros(4, 3, 12),
        frame,
        frame,
        z,
        stored,
        0.0 * stored,
        nothing,
        nothing,
        nothing,
    )
    first = torch.zeros(4, 3, dtype=torch.bool)
    first[2, 1] = first[0, 2] = True
    skill: Any = SimpleNamespace(
        decode=lambda z, observation, memory: (
            None,
            DecoderState(memory.hidden + z, memory.cell + 1.0),
        ),
        alpha=0.9,
    )
    features = ReferenceFeatures(robot, Reference(robot, motions))
    rollout = Imagination(
        skill,
        Sleeper(),
        ideal(),
        features,
        lambda frame: frames_like(still(3)),
        0.9,
        TrackingWeights(),
    )  # type: ignore[arg-type]
    start = rollout.burn_in(stretch, first, torch.Generator())
    assert start.hidden.flatten().tolist() == [1115.0, 1100.0, 1115.0]
    assert start.cell.flatten().tolist() == [3.0, 1.0, 3.0]
    assert torch.equal(start.z, z[3]) and start.state.shape == (3, packed.shape[-1])
