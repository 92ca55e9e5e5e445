"""Bad readings of a height map and a depth camera, by numbers derived by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npmp.deploy.contract import HEIGHT_RANGE, BundleContract
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode, ControlStep, drive
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray, RobotStopped, State, TerrainReading
from npmp.deploy.safety import Limits, SafetyConfig, slow_command
from npmp.deploy.terrain_input import MAP_HOLE_M, DepthImage, HeightMap, TerrainSensor
from tests.deploy.standins import DEPTH_CAMERA, HOME, Standing, two_joints
from tests.deploy.test_controller import Ideal

# two points at each of two feet, and two ahead of each
HEIGHTS = [
    f"ground_{foot}_{x}_{y}_m"
    for foot in ("LEFT", "RIGHT")
    for x in ("+0.00", "+0.40")
    for y in ("-0.05", "+0.05")
]
DEPTHS = [f"depth_{row}_{column}_m" for row in range(4) for column in range(2)]
LEVEL_M = 0.02
# two columns of four rows; the farthest depth is no reading
LEVEL_DEPTHS = np.repeat([4.0, 2.0, 1.0, 0.5], 2)
# the policy acts from 3 s on, and readings are bad for a second
BAD_S = (4.0, 5.0)
# standing up in 3 s, then the policy
QUICK = ControllerConfig(writes=1)
Change = Callable[[TerrainReading], TerrainReading | None]


def contract_of(kind: type[TerrainSensor] | None) -> BundleContract:
    """Of a policy that observes heights, depths, or (None) both."""
    heights: dict[str, Any] = {"extra_inputs": HEIGHTS, "level_m": LEVEL_M}
    depths: dict[str, Any] = {"camera": DEPTH_CAMERA, "level_depths_m": LEVEL_DEPTHS.tolist()}
    if kind is HeightMap:
        return two_joints(**heights)
    if kind is DepthImage:
        return two_joints(**depths | {"extra_inputs": DEPTHS})
    return two_joints(**heights | depths | {"extra_inputs": HEIGHTS + DEPTHS})


class Swinging(Standing):
    """Its joints move by 0.2 rad; its target has all of its inputs."""

    def act(self, readings: Readings, command: FloatArray) -> FloatArray:
        super().act(readings, command)
        return HOME + 0.2 * math.sin(0.3 * self.acts) + 0.01 * np.array(command).sum()


class Seeing(Ideal):
    """A robot on level ground with noisy terrain sensors."""

    def __init__(self, change: Change, bad_s: tuple[float, float] = BAD_S):
        super().__init__()
        self.change = change
        self.bad_s = bad_s

    def reading(self, level: FloatArray) -> TerrainReading | None:
        noise = 1e-3 * math.sin(100.0 * self.time)
        reading = TerrainReading(self.time, level * (1.0 + noise))
        begin, end = self.bad_s
        return self.change(reading) if begin - 1e-6 < self.time < end - 1e-6 else reading

    def read_heights(self) -> TerrainReading | None:
        return self.reading(np.full(8, LEVEL_M))

    def read_depths(self) -> TerrainReading | None:
        return self.reading(LEVEL_DEPTHS)


def run(
    robot: Ideal, contract: BundleContract, seconds: float = 5.0
) -> tuple[Controller, list[ControlStep]]:
    """A run at 1 m/s forward; the second result: the control steps of the policy."""
    machine = Controller(contract, Swinging(HOME), QUICK, SafetyConfig())
    steps: list[ControlStep] = []
    printed: list[str] = []
    robot.failure = drive(  # type: ignore[assignment]
        robot,
        machine,
        seconds=seconds,
        clock=robot,
        record=steps.append,
        command=lambda _: np.array([1.0, 0.0]),
        report=printed.append,
    )
    assert printed == [message for _, message in machine.messages]
    return machine, [step for step in steps if step.output.mode is ControlMode.POLICY]


def values(change: Callable[[FloatArray], object]) -> Change:
    return lambda reading: reading._replace(values=change(reading.values))  # type: ignore[arg-type]


def raising(reading: TerrainReading) -> TerrainReading:
    raise OSError("no bus")


FROZEN = np.random.default_rng(0).uniform(0.0, 0.04, 8)
BAD_MAPS: dict[str, tuple[Change, str]] = {
    "nothing": (lambda _: None, "no reading for 0.2"),
    "late": (lambda r: r._replace(time_s=r.time_s - 0.5), "no reading for 0.2"),
    "nan": (values(lambda v: v * math.nan), "no reading at 8 of 8 points: must be at most 50%"),
    "frozen": (values(lambda v: FROZEN), "frozen: all 8 values are equal while joints move"),
    "constant": (values(lambda v: np.zeros(8)), "frozen: all 8 values"),
    "jump": (values(lambda v: v + 0.2), "jumped by 0.20 m between readings: must be at most 0.1"),
    "deeper": (values(lambda v: v - 3.0), "the ground under the feet is at -2.98 m: must be"),
    "huge": (values(lambda v: v + 1e300), "the ground under the feet is at 1e+300 m"),
    "width": (values(lambda v: v[1:]), r"values are (7,), expected (8,)"),
    "text": (values(lambda v: "x"), "read_heights() raised ValueError"),
    "clock": (lambda r: r._replace(time_s=r.time_s + 9.0), "must be of time.monotonic()"),
    "nan time": (lambda r: r._replace(time_s=math.nan), "time_s=nan"),
    "raises": (raising, "read_heights() raised OSError('no bus')"),
}
BAD_IMAGES: dict[str, tuple[Change, str]] = {
    "nothing": (lambda _: None, "no reading for 0.4"),
    "late": (lambda r: r._replace(time_s=r.time_s - 0.5), "no reading for 0.4"),
    # two pixels see no ground on level ground; of the other six half may be without a reading
    "covered": (values(np.zeros_like), "in 8 of 8 pixels: must be at most 5; is it covered?"),
    "a hand": (values(lambda v: v * 0.0 + 0.1), "in 8 of 8 pixels"),
    "nan": (values(lambda v: v * math.nan), "in 8 of 8 pixels"),
    "an abyss": (values(lambda v: np.where(v > 0.6, math.inf, v)), "in 6 of 8 pixels"),
    "frozen": (values(lambda v: LEVEL_DEPTHS), "frozen: all 8 values"),
    "upside down": (values(lambda v: v[::-1]), "is it upside down?"),
    "raises": (raising, "read_depths() raised OSError('no bus')"),
}
BAD = [(HeightMap, *case) for case in BAD_MAPS.values()]
BAD += [(DepthImage, *case) for case in BAD_IMAGES.values()]


@pytest.mark.parametrize(
    ("kind", "change", "reason"), BAD, ids=[*BAD_MAPS, *(f"image {name}" for name in BAD_IMAGES)]
)
def test_a_bad_sensor_is_replaced_by_level_ground_and_slows_down(
    kind: type[TerrainSensor], change: Change, reason: str
) -> None:
    """The last good reading is of 3.98 s. A map may be 0.2 s old, an image twice (0.1 + 0.1) s. The
    command goes down from 1 to 0.25 * 1.5 m/s by 1.5 m/s2, in 0.42 s; a second after the last bad
    reading, of 4.98 s, it goes up again."""
    machine, steps = run(Seeing(change), contract_of(kind))
    assert machine.reason == "the time is over"
    (failed_s, failed), (recovered_s, recovered) = machine.messages
    age_s, label = (0.2, "height map") if kind is HeightMap else (0.4, "depth camera")
    assert failed.startswith(f"{label}: ") and reason in failed
    assert "level ground, velocity commands are at most 0.25 of their range" in failed
    assert recovered == f"{label}: good for 1 s, used again"
    # of a frozen one, the first are good until a joint has moved by 0.1 rad
    assert 3.98 + age_s < failed_s < 4.08 + age_s
    # the shifted map is taken for good until 5.18 s, when the other one has jumped
    good_s = 5.2 if "jumped" in reason else 4.99
    assert recovered_s == pytest.approx(good_s + 1.0, abs=0.025)

    policy = machine.policy
    assert isinstance(policy, Standing)
    times = np.array([step.now for step in steps])
    observed = np.array(policy.commands)
    forward = observed[:, 0]
    level = LEVEL_DEPTHS if kind is DepthImage else np.full(8, LEVEL_M)
    replaced = (times > failed_s - 1e-6) & (times < recovered_s - 1e-6)
    assert (observed[replaced, 2:] == level).all()
    # of a frozen map the first are observed, within 0.02 m of level ground
    tolerance = 0.02 if kind is HeightMap else 0.004
    assert np.abs(observed[:, 2:] - level).max() <= tolerance
    assert forward[(times > 3.7) & (times < failed_s - 0.01)] == pytest.approx(1.0)
    assert forward[(times > failed_s + 0.42) & (times < 5.97)] == pytest.approx(0.375)
    assert forward[times > 6.65] == pytest.approx(1.0)
    assert np.abs(np.diff(observed[:, :2], axis=0)).max() <= 1.5 * 0.02 + 1e-9
    assert np.isfinite([step.output.target for step in steps]).all()


def test_ground_beyond_that_of_training_is_clipped_and_slows_down() -> None:
    """A pit of 1.2 m ahead of the feet: training's heights end at -0.5 m."""
    pit = np.array([0.0, 0.0, 0.0, -1.2, 0.0, 0.0, -1.2, -1.2])
    machine, _ = run(Seeing(values(lambda v: v + pit)), contract_of(HeightMap))
    assert machine.reason == "the time is over"
    (slow_s, message), (good_s, _) = machine.messages
    assert message.startswith("height map: 3 of 8 heights are beyond those of training, -0.5 to")
    assert "at most -1.18 m" in message and "level ground" not in message
    assert (slow_s, good_s) == pytest.approx((4.0, 5.98), abs=0.021)
    assert isinstance(machine.policy, Standing)
    observed = np.array(machine.policy.commands)[75]  # 4.5 s
    assert observed[0] == pytest.approx(0.375, abs=0.05)
    assert observed[2:] == pytest.approx(np.where(pit < 0.0, -0.5, 0.02), abs=1e-3)


def test_a_pit_after_a_fault_is_reported() -> None:
    """No maps from 4 to 5 s: the last good one is too old at 4.2 s, and the fault ends at 5.98 s, a
    second after the last step without a map. The pit lasts until 6.5 s, and a second longer the
    command is slow."""
    pit = np.array([0.0, 0.0, 0.0, -1.2, 0.0, 0.0, -1.2, -1.2])

    def change(reading: TerrainReading) -> TerrainReading | None:
        if reading.time_s < 5.0 - 1e-6:
            return None
        return reading._replace(values=reading.values + pit)

    machine, steps = run(Seeing(change, (4.0, 6.5)), contract_of(HeightMap))
    times, (fault, caution, good) = zip(*machine.messages, strict=True)
    assert "no reading for 0.2" in fault and "observes level ground" in fault
    assert "3 of 8 heights are beyond those of training" in caution
    assert "level ground" not in caution
    assert good == "height map: good for 1 s, used again"
    assert times == pytest.approx((4.2, 5.98, 7.48), abs=0.021)
    assert isinstance(machine.policy, Standing)
    observed = np.array(machine.policy.commands)[:, 2:]
    at = np.array([step.now for step in steps])
    assert (observed[(at > 5.1) & (at < 5.9)] == LEVEL_M).all()
    assert (observed[(at > 6.1) & (at < 6.4)][:, pit < 0.0] == -0.5).all()


@pytest.mark.parametrize(
    ("kind", "hole"), [(HeightMap, math.nan), (DepthImage, math.nan), (DepthImage, 0.0)]
)
def test_a_single_bad_reading_and_holes_are_no_fault(
    kind: type[TerrainSensor], hole: float
) -> None:
    """Holes are as in training: 0 in a map, the farthest depth in an image. Many cameras give 0
    for a hole."""
    robot = Seeing(values(lambda v: v * math.nan), (4.0, 4.1))
    machine, _ = run(robot, contract_of(kind))
    assert machine.messages == []
    some = np.arange(8) % 4 == 3
    machine, _ = run(Seeing(values(lambda v: np.where(some, hole, v))), contract_of(kind))
    assert machine.messages == [] and isinstance(machine.policy, Standing)
    observed = np.array(machine.policy.commands)[75, 2:]
    assert (observed[some] == (0.0 if kind is HeightMap else 4.0)).all()
    level = np.full(8, LEVEL_M) if kind is HeightMap else LEVEL_DEPTHS
    assert observed[~some] == pytest.approx(level[~some], rel=2e-3)


def test_a_wall_and_a_robot_at_rest_are_no_fault() -> None:
    """A wall at 1 m hides all ground beyond; a robot that does not move may see the same."""
    wall = values(lambda v: np.minimum(v, 1.0) + 1e-4 * v)
    machine, _ = run(Seeing(wall), contract_of(DepthImage))
    assert machine.messages == []
    robot = Seeing(lambda r: r._replace(values=np.full(8, LEVEL_M)), (3.0, 9.0))
    machine = Controller(contract_of(HeightMap), Standing(HOME), QUICK, SafetyConfig())
    drive(
        robot,
        machine,
        seconds=3.0,
        clock=robot,
        record=lambda step: None,
        command=lambda _: np.zeros(2),
    )
    assert machine.messages == []


def test_the_slope_of_an_image_upside_down() -> None:
    """Rows 4, 2, 1, 0.5 m deviate from their mean by 2.125, 0.125, -0.875, -1.375; reversed, their
    covariance is -1.5156, their variance 1.7969."""
    sensor = DepthImage(contract_of(DepthImage))
    assert sensor._slope(LEVEL_DEPTHS) == pytest.approx(1.0)
    assert sensor._slope(LEVEL_DEPTHS[::-1]) == pytest.approx(-1.5156 / 1.7969, rel=1e-4)
    assert sensor._slope(np.full(8, 1.0)) == 0.0


@pytest.mark.parametrize("delivered", ["", "read_heights", "read_depths"])
def test_sensors_that_the_driver_does_not_deliver_are_named(delivered: str) -> None:
    robot = Ideal()
    if delivered:
        level = np.full(8, LEVEL_M) if delivered == "read_heights" else LEVEL_DEPTHS
        setattr(
            robot,
            delivered,
            lambda: TerrainReading(robot.time, level * (1.0 + 1e-3 * math.sin(99 * robot.time))),
        )
    machine, steps = run(robot, contract_of(None))
    lines = [message for _, message in machine.messages]
    missing = [m for m in ("read_heights", "read_depths") if m != delivered]
    assert len(lines) == len(missing)
    for method, line in zip(missing, lines, strict=True):
        name = HEIGHTS[0] if method == "read_heights" else DEPTHS[0]
        assert f"8 values ({name}, ...), but the driver Ideal has no {method}()" in line
    assert isinstance(machine.policy, Standing)
    observed = np.array(machine.policy.commands)
    assert observed[:, 0].max() == pytest.approx(0.375)
    level = np.concatenate((np.full(8, LEVEL_M), LEVEL_DEPTHS))
    assert observed[:, 2:] == pytest.approx(np.tile(level, (len(steps), 1)), rel=2e-3)


def test_a_driver_that_stops_in_a_terrain_sensor_damps() -> None:
    def stopped(reading: TerrainReading) -> TerrainReading:
        raise RobotStopped("emergency stop")

    machine, _ = run(Seeing(stopped), contract_of(HeightMap))
    assert machine.reason == "emergency stop"


def test_only_velocities_are_slowed_down() -> None:
    limits = Limits(two_joints(), SafetyConfig())
    assert slow_command(np.array([1.5, -1.0]), limits).tolist() == [0.375, -0.25]
    assert slow_command(np.array([-0.5, 0.1]), limits).tolist() == [-0.125, 0.1]
    limits.command_rate[1] = np.inf
    assert slow_command(np.array([1.5, -1.0]), limits).tolist() == [0.375, -1.0]


def test_holes_and_range_are_those_of_training() -> None:
    torch = pytest.importorskip("torch")
    from npmp import robots
    from npmp.tasks import inputs

    assert HEIGHT_RANGE == inputs.HEIGHT_RANGE
    sensor = inputs.GroundMap(robots.load("anymal_b"), inputs.HeightMapErrors())
    heights = torch.full((2, 3), 0.3)
    holes = torch.tensor([[True, False, False], [False, False, False]])
    heights[1, 0] = math.nan
    measured = sensor._measured(heights, torch.zeros(2, 3), holes)
    assert measured[:, 0].tolist() == [MAP_HOLE_M, MAP_HOLE_M]


# --- random readings

GARBAGE = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e30, -1.0, 0.0, 0.5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:overflow")
def test_random_terrain_readings_never_reach_a_drive(seed: int) -> None:
    """500 control steps; nothing of it damps the robot."""
    rng = np.random.default_rng(seed)

    def spoiled(reading: TerrainReading) -> TerrainReading | None:
        if rng.random() < 0.1:
            return None
        share = rng.choice([0.0, 0.1, 0.6, 1.0])
        bad = rng.random(8) < share
        mixed = np.where(bad, rng.choice(GARBAGE, 8), reading.values)
        late_s = rng.choice([0.0, 0.0, 0.0, -0.1, -1.0, 5.0, math.nan, math.inf])
        return TerrainReading(reading.time_s + late_s, mixed)

    machine, steps = run(Seeing(spoiled, (3.0, 99.0)), contract_of(None), seconds=10.0)
    assert machine.reason == "the time is over" and len(steps) == 500
    assert isinstance(machine.policy, Standing)
    observed = np.array(machine.policy.commands)
    assert np.isfinite(observed).all() and np.isfinite([s.output.target for s in steps]).all()
    assert (np.abs(observed[:, 2:10]) <= 0.5).all()
    assert ((observed[:, 10:] >= 0.2) & (observed[:, 10:] <= 4.0)).all()
    assert np.abs(np.diff(observed[:, :2], axis=0)).max() <= 1.5 * 0.02 + 1e-9


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore:overflow")
def test_random_states_never_reach_a_drive(seed: int) -> None:
    """One field of the state or the command gets a random value during the policy; whatever is
    written is finite and within the torque limits."""
    rng = np.random.default_rng(seed)
    robot = Seeing(lambda r: r)
    fields = ("joint_pos", "joint_vel", "joint_torque", "gyro", "accelerometer", "up", "time_s")
    name = str(rng.choice((*fields, "command")))
    spoiled_s = rng.uniform(3.0, 4.0)
    bad = float(rng.choice(GARBAGE[:6]))
    read = robot.read

    def spoiled() -> State | None:
        state = read()
        if state is None or robot.time < spoiled_s or name == "command":
            return state
        if name == "time_s":
            return state._replace(time_s=bad)
        field = np.array(getattr(state, name))
        field[rng.integers(len(field))] = bad
        return state._replace(**{name: field})

    robot.read = spoiled  # type: ignore[method-assign]
    machine = Controller(contract_of(None), Swinging(HOME), QUICK, SafetyConfig())
    command = np.array([1.0, 0.0])
    drive(
        robot,
        machine,
        seconds=10.0,
        clock=robot,
        record=lambda step: None,
        command=lambda _: (
            np.array([bad, 0.0]) if name == "command" and robot.time > spoiled_s else command
        ),
    )
    targets = np.array([target for _, target, _ in robot.written])
    assert np.isfinite(targets).all() and (np.abs(targets) <= 1.0).all()
    finite_command = name == "command" and math.isfinite(bad)
    assert (machine.reason == "the time is over") is finite_command
    last_s = max(at for at, _, _ in robot.written)
    assert last_s < spoiled_s + 0.021 or finite_command
