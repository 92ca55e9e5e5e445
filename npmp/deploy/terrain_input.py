"""Checks the readings of height map and depth camera; replaces bad ones by level ground.

A reading that cannot be true is dropped. After `max_age_s` without a good one the policy observes
level ground and its command is slowed down, until the readings have been good for `RECOVER_S`. The
driver delivers readings by the optional methods of `RobotInterface`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from npmp.deploy.contract import HEIGHT_NAME, HEIGHT_RANGE, BundleContract
from npmp.deploy.robot import FloatArray, RobotStopped, TerrainReading
from npmp.deploy.safety import AHEAD_S, BLIND_SHARE, STUCK_RAD

# time of good readings after which a sensor is used again [s] [D]
RECOVER_S = 1.0
# largest age of a height map; a foot swings for about as long [s] [D]
MAP_AGE_S = 0.2
# largest age of a depth image, relative to the oldest in training: one image may be lost [D]
IMAGE_AGE = 2.0
# largest share of heights or depths without a reading; training has 0.02 to some 0.2 [D]
MAX_HOLES = 0.5
# height that a policy observes where its map has no reading, as in training [m]
MAP_HOLE_M = 0.0
# largest median change of heights between two maps [m] [D: walking on stairs at most 0.03]
JUMP_M = 0.1
# largest distance from a foot at which its own height is read [m]
AT_FOOT_M = 0.051
# largest difference of the ground under the feet from level ground, as their median [m] [D: walking
# on stairs of 0.15 m at most 0.18]
UNDER_FEET_M = 0.25
# share of heights beyond the range of training that may be outliers [D]
OUTLIERS = 0.05
# regression slope of an image's rows on those of level ground below which it is upside down: 1 for
# level ground, about -0.6 upside down; walking among walls at least -0.14 [D]
UPSIDE_DOWN = -0.3
# spread of the rows of level ground from which the top of an image is recognized [m] [D]
MIN_SPREAD_M = 0.1


# ends of messages
SLOW = f"velocity commands are at most {BLIND_SHARE:g} of their range"
LEVEL = f"the policy observes level ground, {SLOW}"


class Fault:
    """A reason that lasts until `RECOVER_S` without it."""

    def __init__(self) -> None:
        self.reason = ""
        self.last_s = -math.inf

    def update(self, now: float, reason: str, *, recovering: bool = False) -> None:
        """reason: "" for none. recovering: whether the fault must not end yet. now: [s]."""
        self.reason = self.reason or reason
        if reason or recovering:
            self.last_s = now
        if now - self.last_s >= RECOVER_S:
            self.reason = ""


class TerrainSensor(ABC):
    """A sensor with t values [m]. Subclasses determine which values can be true."""

    label: ClassVar[str]
    # the driver's method that reads it
    method: ClassVar[str]

    def __init__(
        self,
        names: list[str],
        level: FloatArray,
        limits: tuple[float, float],
        hole: float,
        max_age_s: float,
    ):
        """names: of the values. level (t,): of level ground [m]. limits: lowest and highest value
        in training [m]. hole: value where there is no reading [m]. max_age_s: largest age [s]."""
        self.names = names
        self.level = level
        self.limits = limits
        self.hole = hole
        self.max_age_s = max_age_s
        # why the driver does not deliver it at all
        self.missing = ""
        # the driver's last reading that is not checked yet, and its last exception
        self.newest: TerrainReading | None = None
        self.error = ""
        self.reset()

    def reset(self) -> None:
        """Begin an episode. A reading that is not checked yet is kept."""
        # last reading that can be true, without holes and within the limits
        self.accepted: TerrainReading | None = None
        # measurement time of the last reading [s]
        self.last_time_s = -math.inf
        # the last reading, the joints when it changed (nu,), and how far one has moved since [rad]
        self.raw: FloatArray | None = None
        self.joints: FloatArray | None = None
        self.moved = 0.0
        # why the last reading cannot be true
        self.problem = ""
        # what of the last accepted one is out of the range of training
        self.out_of_range = ""
        # level ground is observed instead
        self.fault = Fault()
        # the terrain is out of the range of training
        self.caution = Fault()

    @property
    def slow(self) -> bool:
        """Whether the command must be slowed down."""
        return bool(self.missing or self.state)

    @property
    def state(self) -> str:
        """Either "fault" or "caution", "" for neither."""
        if self.fault.reason:
            return "fault"
        return "caution" if self.caution.reason else ""

    def connect(self, robot: Any) -> None:
        """Note whether the driver delivers this sensor."""
        if not callable(getattr(robot, self.method, None)):
            count = len(self.names)
            self.missing = (
                f"the policy observes {count} values ({self.names[0]}, ...), but the driver "
                f"{type(robot).__name__} has no {self.method}()"
            )

    def poll(self, robot: Any) -> None:
        """Take over the driver's newest reading. Raises RobotStopped as the driver does; its other
        exceptions make the reading bad."""
        if self.missing:
            return
        try:
            reading = getattr(robot, self.method)()
            if reading is not None:
                time_s, values = reading
                self.newest = TerrainReading(float(time_s), np.array(values, np.float64))
            self.error = ""
        except RobotStopped:
            raise
        # whatever a driver raises
        except Exception as error:
            self.error = f"{self.method}() raised {error!r:.100}"

    def observe(self, now: float, joint_pos: FloatArray) -> FloatArray:
        """The values (t,) [m] that the policy observes at a control step. joint_pos: (nu,)."""
        if self.missing:
            return self.level
        reading = self.newest
        self.newest = None
        if self.error:
            self.problem = self.error
        elif reading is not None:
            self._check(now, reading, joint_pos)

        reason = ""
        if self.accepted is None or now - self.accepted.time_s > self.max_age_s:
            self.accepted = None
            self.out_of_range = ""
            reason = self.problem or self._age(now)
        self.fault.update(now, reason, recovering=bool(self.problem))
        self.caution.update(now, self.out_of_range)
        if self.fault.reason or self.accepted is None:
            return self.level
        return self.accepted.values

    def _age(self, now: float) -> str:
        if self.last_time_s == -math.inf:
            return "no reading"
        return (
            f"no reading for {now - self.last_time_s:.2f} s: must be at most {self.max_age_s:.2f} s"
        )

    def _check(self, now: float, reading: TerrainReading, joint_pos: FloatArray) -> None:
        """Accept a reading, or keep why it cannot be true. One of the same time is not checked
        again."""
        time_s, values = reading
        if values.shape != self.level.shape:
            self.problem = f"values are {values.shape}, expected {self.level.shape}"
            return
        if not time_s <= now + AHEAD_S:
            self.problem = f"time_s={time_s:.3f}: must be of time.monotonic(), {now:.3f} now"
            return
        if time_s <= self.last_time_s:
            return

        self.last_time_s = time_s
        filled = self._filled(values)
        frozen = self._frozen(values, joint_pos)
        self.problem = self._implausible(values, filled) or frozen or self._old(now)
        if not self.problem:
            self.out_of_range = self._out_of_range(values)
            self.accepted = TerrainReading(time_s, filled)

    def _old(self, now: float) -> str:
        return self._age(now) if now - self.last_time_s > self.max_age_s else ""

    def _frozen(self, values: FloatArray, joint_pos: FloatArray) -> str:
        """Detects readings that repeat under new times while the robot moves."""
        equal = self.raw is not None and np.array_equal(values, self.raw, equal_nan=True)
        if not equal or self.joints is None:
            self.raw = values
            self.joints = joint_pos.copy()
            self.moved = 0.0
            return ""
        self.moved = max(self.moved, float(np.abs(joint_pos - self.joints).max()))
        if self.moved > STUCK_RAD:
            return f"frozen: all {len(values)} values are equal while joints move"
        return ""

    def _filled(self, values: FloatArray) -> FloatArray:
        """Values (t,) without holes and clipped to those of training [m]."""
        return np.clip(np.where(np.isfinite(values), values, self.hole), *self.limits)

    @abstractmethod
    def _implausible(self, values: FloatArray, filled: FloatArray) -> str:
        """Why values (t,) cannot be true, "" for no reason. filled: without holes and clipped."""

    def _out_of_range(self, values: FloatArray) -> str:
        """What of values (t,) is out of the range of training, "" for nothing."""
        return ""


class HeightMap(TerrainSensor):
    """Heights of the ground about the feet, relative to the floor under a robot in its home
    pose."""

    label = "height map"
    method = "read_heights"

    def __init__(self, contract: BundleContract):
        names = contract.height_names
        level = np.full(len(names), contract.level_m)
        super().__init__(names, level, HEIGHT_RANGE, MAP_HOLE_M, MAP_AGE_S)
        matches = [HEIGHT_NAME.fullmatch(name) for name in names]
        offsets = np.array([match.groups() if match else (0, 0) for match in matches], np.float64)
        self.at_foot: NDArray[np.bool_] = np.abs(offsets).max(1) < AT_FOOT_M

    def _implausible(self, values: FloatArray, filled: FloatArray) -> str:
        count = len(values)
        valid = np.isfinite(values)
        if (holes := int((~valid).sum())) > MAX_HOLES * count:
            return f"no reading at {holes} of {count} points: must be at most {MAX_HOLES:.0%}"

        under = values[valid & self.at_foot]
        level = float(self.level[0])
        height = float(np.median(under)) if len(under) else level
        if not abs(height - level) <= UNDER_FEET_M:
            return (
                f"the ground under the feet is at {height:.3g} m: must be within {UNDER_FEET_M:g} "
                f"of {level:.2f} m"
            )

        if self.accepted is not None:
            jump = float(np.median(np.abs(filled - self.accepted.values)))
            if jump > JUMP_M:
                return f"jumped by {jump:.2f} m between readings: must be at most {JUMP_M:g} m"
        return ""

    def _out_of_range(self, values: FloatArray) -> str:
        low, high = self.limits
        outside = (values < low) | (values > high)
        if (count := int(outside.sum())) <= OUTLIERS * len(values):
            return ""
        extreme = values[outside][np.abs(values[outside]).argmax()]
        return (
            f"{count} of {len(values)} heights are beyond those of training, {low:g} to {high:g} m,"
            f" at most {extreme:.3g} m"
        )


class DepthImage(TerrainSensor):
    """Depths along the optical axis, row by row from the top left."""

    label = "depth camera"
    method = "read_depths"

    def __init__(self, contract: BundleContract):
        camera = contract.camera or {}
        near, far = (float(depth) for depth in camera["range_m"])
        oldest_s = float(camera["delay_s"]) + 1.0 / float(camera["rate_hz"])
        level = np.array(contract.level_depths_m)
        # a pixel without a reading has the farthest depth in training
        super().__init__(contract.depth_names, level, (near, far), far, IMAGE_AGE * oldest_s)
        self.columns = int(camera["size"][0])
        # holes that an image may have: half of the pixels that see level ground
        holes = int(self._holes(level).sum())
        self.max_holes = holes + MAX_HOLES * (len(level) - holes)

    def _filled(self, values: FloatArray) -> FloatArray:
        # many cameras give 0 where they have no depth
        return super()._filled(np.where(values > 0.0, values, np.nan))

    def _holes(self, values: FloatArray) -> NDArray[np.bool_]:
        near, far = self.limits
        return ~((values > near) & (values < far))

    def _implausible(self, values: FloatArray, filled: FloatArray) -> str:
        near, far = self.limits
        if (holes := int(self._holes(values).sum())) > self.max_holes:
            return (
                f"no depth from {near:g} to {far:g} m in {holes} of {len(values)} pixels: must be "
                f"at most {self.max_holes:.0f}; is it covered?"
            )
        if self._slope(filled) < UPSIDE_DOWN:
            return "the ground is farther at the bottom than at the top; is it upside down?"
        return ""

    def _slope(self, values: FloatArray) -> float:
        """Regression slope of the means of rows on those of level ground; 1 if these do not
        differ, as when the camera looks straight down."""
        rows = values.reshape(-1, self.columns).mean(1)
        level = self.level.reshape(-1, self.columns).mean(1)
        if level.std() < MIN_SPREAD_M:
            return 1.0
        return float(np.cov(rows, level, bias=True)[0, 1] / level.var())


class TerrainInput:
    """All terrain that a policy observes, heights before depths; messages for a person."""

    def __init__(self, contract: BundleContract):
        self.sensors: list[TerrainSensor] = []
        if contract.height_names:
            self.sensors.append(HeightMap(contract))
        if contract.depth_names:
            self.sensors.append(DepthImage(contract))
        # not yet taken by `take_messages`
        self.messages: list[str] = []

    def connect(self, robot: Any) -> None:
        """Note which sensors the driver does not deliver."""
        for sensor in self.sensors:
            sensor.connect(robot)
            if sensor.missing:
                self.messages.append(f"{sensor.label}: {sensor.missing}; {LEVEL}")

    def reset(self) -> None:
        """Begin an episode."""
        for sensor in self.sensors:
            sensor.reset()

    def poll(self, robot: Any) -> None:
        """Take over the driver's newest readings. Raises RobotStopped as the driver does."""
        for sensor in self.sensors:
            sensor.poll(robot)

    def observe(self, now: float, joint_pos: FloatArray) -> FloatArray:
        """The values (t,) [m] of all sensors that the policy observes at a control step."""
        values = [self._observe(sensor, now, joint_pos) for sensor in self.sensors]
        return np.concatenate(values) if values else np.zeros(0)

    def _observe(self, sensor: TerrainSensor, now: float, joint_pos: FloatArray) -> FloatArray:
        before = sensor.state
        values = sensor.observe(now, joint_pos)
        if sensor.state == before:
            return values
        if sensor.state == "fault":
            message = f"{sensor.fault.reason}; {LEVEL}"
        elif sensor.state == "caution":
            message = f"{sensor.caution.reason}; {SLOW}"
        else:
            message = f"good for {RECOVER_S:g} s, used again"
        self.messages.append(f"{sensor.label}: {message}")
        return values

    @property
    def slow(self) -> bool:
        """Whether the command must be slowed down."""
        return any(sensor.slow for sensor in self.sensors)

    def take_messages(self) -> list[str]:
        """The messages since the last call."""
        messages = self.messages
        self.messages = []
        return messages
