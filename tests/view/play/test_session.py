"""A session, driven step by step without a clock."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots
from npmp.evaluation.handover import load_recovery
from npmp.skills import policies
from npmp.skills.footsteps import FOOTSTEPS
from npmp.skills.high_level_policy import load_policy
from npmp.tasks import dribble
from npmp.tasks.navigate import GlobalPlanner
from npmp.tasks.walk import WalkConfig
from npmp.view.play import MODES, Cast, Session, World
from npmp.view.play.casting import policies_of
from npmp.view.play.realtime import BEHIND_S, Player
from npmp.view.play.session import MAX_PUSH, RESET_S
from tests.refusals import refusal


def steps(session: Session, seconds: float) -> None:
    for _ in range(round(seconds / session.mode.env.dt)):
        session.step()


def test_a_held_command_moves_it_within_a_second_and_letting_go_stops_it(cast: Cast) -> None:
    session = Session(cast)
    steps(session, 0.5)
    session.steer(0.5, 0.0, 0.0)
    steps(session, 1.0)
    seen = session.snapshot()
    # half of what the policy follows, 1.5 m/s
    assert seen.command == pytest.approx([0.75, 0.0, 0.0])
    assert seen.achieved[0] == pytest.approx(0.75, abs=0.15)
    session.steer(0.0, 0.0, 0.0)
    steps(session, 1.5)
    assert np.abs(session.snapshot().achieved).max() < 0.1
    session.steer(-1.0, 0.0, 1.0)
    steps(session, 1.5)
    assert session.snapshot().achieved[0] < -0.2 and session.snapshot().achieved[2] > 0.6
    assert session.falls == 0


@pytest.mark.parametrize("axes", [(1.1, 0, 0), (float("nan"), 0, 0), ("1", 0, 0)])
def test_no_command_is_none(cast: Cast, axes: Any) -> None:
    refusal("-1 to 1", Session(cast).steer, *axes)


def test_a_push_moves_it_as_long_as_it_lasts(cast: Cast) -> None:
    session, still = Session(cast), Session(cast)
    session.push("base", session.snapshot().bodies[0, :3], (0.0, 1.0, 0.0))
    steps(session, 0.3)
    steps(still, 0.3)
    point, force = session.snapshot().push or (None, None)
    # 1 m at 4 N/kg per metre
    assert force == pytest.approx([0.0, 4.0 * session.mass, 0.0])
    assert point == pytest.approx(session.snapshot().bodies[0, :3])
    assert session.snapshot().bodies[0, 1] > still.snapshot().bodies[0, 1] + 0.02
    session.release()
    assert session.snapshot().push is None
    body = session.mode.env.robots.sim.model.body("base").id
    assert not session.mode.env.robots.sim.wrench(body).any()
    session.push("base", session.snapshot().bodies[0, :3], (9.0, 0.0, 0.0))
    assert np.linalg.norm(session.snapshot().push[1]) == pytest.approx(MAX_PUSH * session.mass)  # type: ignore[index]
    refusal("tail", session.push, "tail", (0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_opens_and_repeats_bit_for_bit(cast: Cast, mode: str) -> None:
    def played() -> Any:
        session = Session(cast, mode, World(randomization="pushed"), seed=3)
        session.steer(0.3, -0.2, 0.1)
        steps(session, 0.4)
        session.push("RF_THIGH", session.snapshot().bodies[5, :3], (0.1, 0.1, 0.0))
        if session.mode.clips:
            session.choose(session.mode.clips[-1])
        session.mode.point(1.0, 0.5)
        steps(session, 0.4)
        return session.snapshot()

    first, second = played(), played()
    assert first.mode == mode
    assert np.isfinite(first.bodies).all() and first.bodies.tobytes() == second.bodies.tobytes()
    assert first.achieved == second.achieved
    assert (first.command is not None) == (mode in ("steer", "navigate"))
    assert (first.ghost is not None) == (mode == "imitate")
    assert (first.ball is not None) == (mode == "dribble")
    assert (first.target is not None) == (mode in ("navigate", "dribble"))


def test_the_robot_goes_where_one_points(cast: Cast) -> None:
    """In its house, by what its camera shows; a place beyond the house is the nearest within."""
    session = Session(cast, "navigate")
    seen, task = session.snapshot(), session.mode.task
    assert (
        seen.camera_image is not None
        and seen.camera_image.shape == (9, 16)
        and seen.camera_image.max() > 100
    )
    near, far = task.planner.camera.config.range_m
    assert f"White: {near:g} m; black: {far:g} m" in session.mode.caption and session.mode.has_rooms
    heights, corner = session.mode.ground or (np.zeros(0), (0.0, 0.0))
    assert heights.shape == (161, 161)
    goals = torch.arange(task.planner.routes.distance.shape[1])[None]

    def left() -> torch.Tensor:
        """By the whole map, to each of the house's goals."""
        here = task.env.state.root_pos[:, None, :2].expand(-1, goals.numel(), -1)
        return GlobalPlanner.distance_to_goal(task.planner, here, goals)[0]

    for goal in left().argsort()[[2, -1]]:  # a near one, then a far one
        place, before = np.array(corner) + task.planner.routes.goals[0, goal].numpy(), left()[goal]
        session.mode.point(*place)
        assert session.snapshot().target == pytest.approx(tuple(place), abs=1e-3)
        steps(session, 3.0)
        assert left()[goal] < before - 0.5
    session.mode.point(1e3, 1e3)
    inside = np.array(session.snapshot().target) - corner
    assert (inside > 0.0).all() and (inside < 8.0).all()


def test_a_ball_that_is_lost_is_put_back(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(cast, "dribble")
    monkeypatch.setattr(dribble, "FAR_M", 0.01)
    steps(session, RESET_S + 0.1)
    place, _ = session.snapshot().ball or (np.zeros(7), 0.0)
    assert np.linalg.norm(place[:2] - session.snapshot().bodies[0, :2]) < 1.2
    assert session.falls == 0


def test_a_ball_is_as_large_as_in_the_policys_training() -> None:
    """OP3's: from 0.062 to 0.073 m, so 0.0675 m."""
    robot = robots.load("op3")
    policy = load_policy(policies.find("op3_dribble"), robot)
    session = Session(Cast(robot, policy.lower, {"dribble": policy}), "dribble")
    _, radius = session.snapshot().ball or (None, 0.0)
    assert radius == pytest.approx(0.0675)


@pytest.mark.parametrize(
    "world", [{"level": 2.0}, {"terrain": "moon"}, {"randomization": 1}, {"mass": 1}]
)
def test_no_world_is_out_of_range(cast: Cast, world: dict[str, Any]) -> None:
    player = Player(Session(cast), lambda seen: None, Clock())
    refusal("", player.open, **world)
    assert not player.busy


def test_another_world_opens_the_mode_anew(cast: Cast) -> None:
    session = Session(cast)
    assert session.mode.ground is None
    world = World(terrain="perlin", randomization="pushed")
    session.enter(session.made("steer", world), world)
    assert session.mode.env.robots.config.pushes.force == 50.0
    heights, corner = session.mode.ground or (np.zeros((1, 1)), (0.0, 0.0))
    # half of 0.3 m
    assert heights[0] == pytest.approx(heights[-1]) and np.ptp(heights) == pytest.approx(0.15)
    at = torch.tensor(corner) + torch.tensor([1.0, 2.0])
    expected = pytest.approx(session.mode.env.ground.terrain.height_at(at).item(), abs=1e-5)
    assert heights[20, 10] == expected
    session.steer(0.5, 0.0, 0.0)
    steps(session, 1.0)
    assert session.snapshot().achieved[0] > 0.3


def toppled(session: Session) -> float:
    """Push it over, and on until it lies. Returns when it fell [s]."""
    fell, lay = math.inf, False
    for _ in range(150):
        session.push("base", session.snapshot().bodies[0, :3] + (0.0, 0.0, 0.3), (0.0, 5.0, 0.0))
        session.step()
        if session.snapshot().down and not lay:
            fell = session.time_s
        lay = session.snapshot().down
        if lay and session.time_s > fell + 0.5:
            break
    session.release()
    assert session.falls >= 1
    return fell


def test_what_falls_is_put_back_where_it_fell(cast: Cast) -> None:
    session = Session(cast)
    since, place = toppled(session), np.zeros(2)
    while session.snapshot().down:
        place = session.snapshot().bodies[0, :2]
        session.step()
    # moments in which it is nearly up do not count
    assert RESET_S - 0.05 < session.time_s - since < 2.0 * RESET_S
    seen = session.snapshot()
    assert seen.bodies[0, 2] > 0.4
    assert np.linalg.norm(seen.bodies[0, :2] - place) < 0.1
    session.steer(1.0, 0.0, 0.0)
    steps(session, 1.0)
    assert session.snapshot().achieved[0] > 0.5 and not session.snapshot().down


def test_what_has_fallen_gets_up_by_itself_and_walks_on(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `npmp play` has it: `anymal_b_recover` beside the walking policy, nothing puts the robot
    back."""
    session = Session(replace(cast, recovery=load_recovery("anymal_b_recover", cast.robot)))
    toppled(session)
    monkeypatch.setattr(session, "put_back", lambda: pytest.fail("it was put back"))
    steps(session, RESET_S + 4.0)
    assert not session.snapshot().down
    session.steer(1.0, 0.0, 0.0)
    steps(session, 2.0)
    assert not session.snapshot().down and session.snapshot().achieved[0] > 0.5
    assert session.falls >= 1


def over_stairs(policy: str, **settings: Any) -> Session:
    """A Go2 that has walked over stairs for a second. settings: of the task."""
    robot = robots.load("unitree_go2")
    module = "go2_ground" if policy == FOOTSTEPS else None
    actors, skill = policies_of(robot, policy, module, None)
    config = WalkConfig(may_touch="limbs", **settings)
    cast = Cast(robot, skill, actors, {"walk": config})
    session = Session(cast, "steer", World("stairs", 0.25))
    session.steer(0.5, 0.0, 0.0)
    steps(session, 1.0)
    assert session.falls == 0
    return session


def heights_below(session: Session, points: Any) -> Any:
    """Heights of the ground at points (k, 3) [m]."""
    place = torch.tensor(points[None, :, :2], dtype=torch.float32)
    return session.mode.env.ground.height_in_world(place)[0].numpy()


def test_footsteps_show_footholds_and_what_the_camera_saw() -> None:
    camera = {"size": [32, 18], "place_m": [0.3, 0.0, 0.05], "pitch_deg": 45.0}
    session = over_stairs(FOOTSTEPS, camera=camera)
    seen = session.snapshot()
    assert seen.camera_image is not None and seen.camera_image.shape == (18, 32)
    assert session.mode.caption.startswith("Depth camera, 87° × 58°")
    assert seen.markers is not None
    # the camera's noise at a metre is 4 mm; cells beside a riser are off by more
    off = np.abs(seen.markers.ground[:, 2] - heights_below(session, seen.markers.ground))
    assert len(off) > 500 and np.median(off) < 0.02
    assert seen.markers.footholds.shape == (4, 3)
    off = seen.markers.footholds[:, 2] - heights_below(session, seen.markers.footholds)
    assert np.abs(off).max() < 0.05


def test_footsteps_without_a_camera_have_all_of_the_ground() -> None:
    session = over_stairs(FOOTSTEPS)
    seen = session.snapshot()
    assert seen.camera_image is None and session.mode.caption == ""
    assert seen.markers is not None and seen.markers.ground.shape == (0, 3)
    with pytest.raises(InputError, match="needs module="):
        policies_of(session.cast.robot, FOOTSTEPS, None, None)


def test_a_policy_that_sees_the_ground_shows_where() -> None:
    session = over_stairs("go2_stairs_walk")
    markers = session.snapshot().markers
    assert markers is not None and markers.footholds.shape == (0, 3)
    # 24 points about each of four feet, shown without the map's noise of 1 cm
    assert markers.ground.shape == (96, 3)
    assert markers.ground[:, 2] == pytest.approx(heights_below(session, markers.ground), abs=1e-4)


def test_there_is_something_to_play_with(cast: Cast) -> None:
    refusal("nothing to play with", Cast, cast.robot)
    refusal("no mode 'fly'; available: steer", Session, cast, "fly")
    assert Cast(cast.robot, cast.skill).modes == ("wander",)


class Clock:
    """Time that passes by waiting, and by `busy` at every look."""

    def __init__(self) -> None:
        self.time, self.busy = 0.0, 0.0

    def now(self) -> float:
        self.time += self.busy
        return self.time

    def wait_until(self, time_s: float) -> None:
        self.time = max(self.time, time_s)


def played(player: Player, count: int) -> None:
    """So many turns of the loop."""
    left = [count]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    player.run(stop)


def test_a_player_keeps_time(cast: Cast) -> None:
    session, clock = Session(cast), Clock()
    player = Player(session, lambda seen: None, clock)
    played(player, 50)
    assert clock.time == pytest.approx(session.time_s) == pytest.approx(1.0)
    assert player.factor == pytest.approx(1.0)
    player.speed = 0.25
    played(player, 25)
    assert clock.time == pytest.approx(3.0, abs=0.1) and session.time_s == pytest.approx(1.5)
    player.paused = True
    played(player, 10)
    assert session.time_s == pytest.approx(1.5)
    player.once()
    played(player, 3)
    assert session.time_s == pytest.approx(1.52)
    player.paused, player.speed, clock.busy = False, 1.0, 0.04  # twice as slow as it should be
    before = clock.time
    played(player, 200)
    assert player.factor == pytest.approx(0.5, abs=0.05)
    clock.busy = 0.0
    played(player, 100)  # what was lost stays lost, but for the last quarter of a second
    assert clock.time - before > 8.0 + 2.0 - BEHIND_S - 0.1


def test_a_failed_request_is_noted_and_the_last_requested_mode_opens(cast: Cast) -> None:
    session = Session(cast)
    player = Player(session, lambda seen: None, Clock())
    player.ask("steer", lambda s: s.steer(2.0, 0.0, 0.0))
    played(player, 1)
    assert "-1 to 1" in player.note
    player.ask("first", lambda s: player.open("imitate"))
    player.ask("second", lambda s: player.open("dribble"))
    for _ in range(500):
        played(player, 5)
        if not player.busy:
            break
    played(player, 5)
    assert session.mode.name == "dribble"
    player.ask("mode", lambda s: player.open("fly"))
    for _ in range(500):
        played(player, 2)
        if "no mode" in player.note:
            break
    assert "no mode 'fly'" in player.note and session.mode.name == "dribble" and not player.busy


def test_requests_of_one_kind_are_merged_and_a_step_follows_them(cast: Cast) -> None:
    session, done = Session(cast), list[Any]()
    player = Player(session, lambda seen: None, Clock())
    for i in range(1000):
        player.ask("world", lambda s, **values: done.append(values), **{f"k{i % 3}": i})
    player.ask("again", lambda s: player.ask("again", lambda s: done.append("again")))
    played(player, 2)
    assert done == [{"k1": 997, "k2": 998, "k0": 999}, "again"]
    assert session.time_s == pytest.approx(2 * session.mode.env.dt)
    with pytest.raises(InputError, match="more than 64"):
        for i in range(100):
            player.ask("set", lambda s, **values: None, **{f"k{i}": i})
