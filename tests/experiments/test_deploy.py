"""`npmp deploy` and `npmp deploy compare-logs`, with a policy that stands in for a bundle's."""

from __future__ import annotations

import errno
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch

from mocap_data.errors import InputError
from npmp import robots
from npmp.actuators.joint_states import read_joint_states
from npmp.actuators.models import ActuatorContract, make
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import Command, JointSpec, observation_layout
from npmp.deploy.run_log import read_log
from npmp.deploy.simulated import check_limits
from npmp.experiments import cli, deploy
from tests.deploy.standins import Standing, contract_of
from tests.experiments.command import Says

QUICK = [
    "robot=sim",
    "sim.realtime=false",
    "seconds=0.5",
    "controller.stand_s=1.0",
    "controller.damping_s=0.05",
]

OWN = """
import time
import numpy as np
from npmp.deploy.robot import State

class Hanging:
    \"\"\"In the air at the home pose, whatever it is told.\"\"\"

    def __init__(self, contract):
        self.pos = np.array(contract.home_pose)

    def read(self):
        zero, three, up = np.zeros_like(self.pos), np.zeros(3), np.array([0.0, 0.0, 1.0])
        return State(time.monotonic(), self.pos, zero, zero, three, 9.81 * up, up)

    def write(self, target, kp, kd, duration_s):
        pass

    def stop(self):
        pass
"""


class Stand:
    """A bundle that holds the home pose."""

    contract = contract_of()

    def policy(self) -> Standing:
        return Standing(robots.load("anymal_b").home_joints)


@pytest.fixture(autouse=True)
def bundle(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "read", staticmethod(lambda folder: Stand()))
    monkeypatch.setattr(deploy, "check_golden", lambda bundle: None)


def test_a_run_and_its_comparison(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    sim, compared = tmp_path / "sim", tmp_path / "compared"
    assert deploy.main(["bundle", *QUICK, "sim.jitter_ms=5", "command=[0.4,0]", f"out={sim}"]) == 0
    result = json.loads((sim / "deploy.json").read_text())
    assert (result["tripped"], result["ended"], result["policy_s"]) == (
        False,
        "the time is over",
        0.5,
    )
    assert [mode for _, mode, _ in result["modes"]] == ["passive", "stand", "policy", "damping"]
    assert result["robot"]["least_upright"] > 0.98
    assert result["robot"]["stopped_why"] == "stop command"
    log = read_log(sim)
    assert log.columns["asked"][-1] == pytest.approx([0.4, 0.0])

    assert log.about["controller"]["stand_s"] == 1.0
    assert log.about["safety"]["tilt_deg"] == 45.0

    capsys.readouterr()
    assert cli.main(["deploy", "compare-logs", str(sim), str(sim), f"out={compared}"]) == 0
    comparison = json.loads((compared / "comparison.json").read_text())
    assert len(comparison["worst"]) == 3 and len(comparison["channels"]) == 12 * 4 + 9 + 1
    assert max(one["relative"] for one in comparison["channels"]) == 0.0
    assert "the most different channels" in capsys.readouterr().out


def test_a_run_is_recorded_as_mcap_and_compared_with_its_log(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    sim, file, compared = tmp_path / "sim", tmp_path / "run.mcap", tmp_path / "compared"
    assert deploy.main(["bundle", *QUICK, f"record={tmp_path / 'run.bag'}", f"out={sim}"]) == 2
    assert "record=" in capsys.readouterr().err and not sim.exists()
    assert deploy.main(["bundle", *QUICK, f"record={file}", f"out={sim}"]) == 0
    columns = read_log(sim).columns
    complete = np.isfinite(columns["joint_pos"] + columns["target"]).all(axis=1)
    joints = read_joint_states(file)
    np.testing.assert_array_equal(joints["position"], columns["joint_pos"][complete])
    np.testing.assert_array_equal(joints["command"], columns["target"][complete])
    assert cli.main(["deploy", "compare-logs", str(file), str(sim), f"out={compared}"]) == 0
    comparison = json.loads((compared / "comparison.json").read_text())
    assert len(comparison["channels"]) == 12 * 4 and len(comparison["on_one_side_only"]) == 9 + 1


def test_what_is_kept_within_a_range_and_what_cannot_get_up_is_said(
    tmp_path: Path, monkeypatch: MonkeyPatch, printed: Says
) -> None:
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), task="recover"))
    for tilt, fallen in ((45, True), (180, False)):
        args = [f"safety.tilt_deg={tilt}", "command=[9,0]", f"out={tmp_path}"]
        message = printed("bundle", *QUICK, *args, by=deploy.main)
        assert ("damps a fallen robot" in message) == fallen
        assert "forward_mps 9 is clamped to -0.5 to 1.5 m/s" in message and "turn" not in message
    assert read_log(tmp_path).columns["asked"][-1] == pytest.approx([1.5, 0.0])


def test_a_watchdog_ends_with_code_3(tmp_path: Path) -> None:
    out = tmp_path / "slow"
    assert deploy.main(["bundle", *QUICK, "sim.latency_ms=120", f"out={out}"]) == 3
    result = json.loads((out / "deploy.json").read_text())
    assert result["tripped"] and result["ended"].startswith("the state is")
    assert (out / "log.h5").is_file()  # what led to it


@pytest.mark.parametrize(("late", "code"), [("sim.latency_ms=120", 3), ("sim.latency_ms=0", 2)])
def test_a_full_disk_does_not_hide_why_it_was_damped(
    late: str, code: int, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    """The journal remains, of what was written before."""

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("npmp.deploy.run_log.write_log", full)
    monkeypatch.setattr(deploy, "write_json", full)
    assert deploy.main(["bundle", *QUICK, late, f"out={tmp_path}"]) == code
    err = capsys.readouterr().err
    assert ("damped: the state is" in err) == (code == 3)
    assert f"{tmp_path / 'log.h5'}: No space left on device" in err and "Traceback" not in err
    assert len(read_log(tmp_path).columns["time_s"]) > 5


@pytest.mark.parametrize(
    ("signals", "code", "ended", "tripped"),
    [
        ("SIGINT", 3, "SIGINT", False),
        ("SIGHUP SIGHUP", 3, "SIGHUP", False),
        ("SIGUSR1 SIGUSR1", 3, "SIGUSR1", True),
        ("SIGPIPE", 0, "the time is over", False),
        ("SIGINT SIGINT", 130, None, True),
    ],
)
def test_signals_damp_the_robot(
    signals: str,
    code: int,
    ended: str | None,
    tripped: bool,
    tmp_path: Path,
    monkeypatch: MonkeyPatch,
) -> None:
    act = Standing.act

    def signalled(self: Standing, *args: Any) -> Any:
        if not self.acts:
            for name in signals.split():
                os.kill(os.getpid(), getattr(signal, name))
        return act(self, *args)

    monkeypatch.setattr(Standing, "act", signalled)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests' parent may ignore it
    try:
        assert deploy.main(["bundle", *QUICK, f"out={tmp_path}"]) == code
    finally:
        signal.signal(signal.SIGHUP, before)
    result = json.loads((tmp_path / "deploy.json").read_text())
    assert result["tripped"] == tripped and (ended is None or result["ended"] == ended)


def test_whatever_fails_the_robot_is_told_to_stop(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    out, marker = tmp_path / "out", tmp_path / "stopped"
    source = OWN.replace(
        "def stop(self):\n        pass",
        f"def stop(self):\n        open({str(marker)!r}, 'w').close()",
    )
    begun = f"        assert __import__('os').path.exists({str(out / 'config.yaml')!r})\n"
    place = "        self.pos ="
    (tmp_path / "mine.py").write_text(source.replace(place, begun + place))

    def fails(*_: object) -> None:
        assert not marker.exists()
        raise RuntimeError("before the loop")

    monkeypatch.setattr(deploy, "Controller", fails)
    assert deploy.main(["bundle", f"robot={tmp_path}/mine.py:Hanging", f"out={out}"]) == 1
    assert marker.exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Hanging:\n    def read(self", "never closed"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (OWN.replace("contract):", "contract, bus):"), "missing a required argument"),
        (
            OWN.replace(
                "        self.pos =", "        raise OSError('no bus')\n        self.pos ="
            ),
            "OSError('no bus')",
        ),
        (OWN.replace("def stop", "def halt"), "methods read, write, stop"),
    ],
    ids=["syntax", "module", "constructor", "raises", "methods"],
)
def test_a_robot_that_is_none_is_refused(
    source: str, message: str, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(source)
    code = deploy.main(["bundle", f"robot={tmp_path}/mine.py:Hanging", f"out={tmp_path / 'out'}"])
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_robot_of_one_s_own(tmp_path: Path) -> None:
    sized = "from dataclasses import dataclass\n@dataclass\nclass Size:\n    n: 'int'\n"
    (tmp_path / "mine.py").write_text(sized + OWN)
    settings = [
        "controller.stand_s=0.2",
        "seconds=0.2",
        "safety.missed_deadlines=100",
        "safety.state_age_s=1.0",
    ]
    assert (
        deploy.main(
            ["bundle", f"robot={tmp_path}/mine.py:Hanging", *settings, f"out={tmp_path / 'out'}"]
        )
        == 0
    )
    assert json.loads((tmp_path / "out" / "deploy.json").read_text())["source"].endswith(
        "mine.py:Hanging"
    )


def wider(name: str, value: Any) -> list[JointSpec]:
    joints = contract_of().joints
    k = contract_of().joint_names.index("LH_KFE")
    return [*joints[:k], replace(joints[k], **{name: value}), *joints[k + 1 :]]


def every(name: str, value: Any) -> list[JointSpec]:
    """All joints with such a value, one that is no number without a robot."""
    return [replace(joint, **{name: value}) for joint in contract_of().joints]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"control_rate_hz": 100.0}, "control_rate_hz=100: must be 50"),
        ({"joints": wider("torque_limit", 80.0)}, "torque_limit of LH_KFE=80"),
        # of 100 and 2.387
        ({"joints": wider("kp", 101.0)}, "kp of LH_KFE=101"),
        ({"joints": every("kp", 50.0)}, "kp of LF_HAA=50"),
        ({"joints": every("kd", 0.0)}, "kd of LF_HAA=0"),
        # of 0.05 to 2.6
        ({"joints": wider("range", [-0.1, 2.6])}, "lower range of LH_KFE=-0.1"),
        ({"joints": contract_of().joints[:-1]}, "joint_names: joint "),
        ({"commands": [Command("forward_mps", "m/s", [0.5, 1.0])]}, "must hold 0 m/s"),
        ({"robot": "unknown"}, "no robot 'unknown' here"),
    ],
)
def test_a_bundle_of_other_limits_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path, monkeypatch: MonkeyPatch, refused: Says
) -> None:
    """Resealed: what is sent would be limited by the bundle alone. Neither its task nor how it was
    recorded excuses it. Of a driver of the user's own, so that no simulator refuses it."""
    excuses = {"task": "recover", "golden": {"actuator": {"name": "knee"}}}
    joints = changed.get("joints", contract_of().joints)
    excuses["observation"] = observation_layout(len(joints))
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), **excuses, **changed))
    (tmp_path / "mine.py").write_text(OWN)
    args = ["bundle", f"robot={tmp_path}/mine.py:Hanging", f"out={tmp_path / 'out'}"]
    assert message in refused(*args, by=deploy.main)
    assert not (tmp_path / "out").exists()


def test_a_drive_that_would_not_damp_is_refused(
    tmp_path: Path, monkeypatch: MonkeyPatch, refused: Says
) -> None:
    """Also where the robot is described so: kd 0.05 of kp 100, and 0.001 kp = 0.1 is the least."""
    limp = replace(robots.load("anymal_b"), kd=np.full(12, 0.05))
    monkeypatch.setattr(robots, "load", lambda name: limp)
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), joints=every("kd", 0.05)))
    message = refused("bundle", *QUICK, f"out={tmp_path / 'out'}", by=deploy.main)
    assert "kd of LF_HAA of 'anymal_b'" in message


def test_a_graph_is_tried_before_it_is_loaded(
    tmp_path: Path, monkeypatch: MonkeyPatch, refused: Says
) -> None:
    def slow(bundle: object) -> None:
        raise InputError("too slow")

    monkeypatch.setattr(deploy, "check_golden", slow)
    monkeypatch.setattr(Stand, "policy", lambda self: pytest.fail("loaded"))
    assert "too slow" in refused("bundle", *QUICK, f"out={tmp_path / 'out'}", by=deploy.main)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("        raise RuntimeError('bus off')", 3, "mine.py:Hanging: raised by the driver"),
        ("        return {'joint_pos': self.pos}", 3, "read() returned dict, expected State"),
    ],
)
def test_a_driver_that_fails_is_reported_as_the_user_s(
    line: str, code: int, message: str, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    head = "    def read(self):\n"
    (tmp_path / "mine.py").write_text(OWN.replace(head, head + line + "\n"))
    args = ["bundle", f"robot={tmp_path}/mine.py:Hanging", f"out={tmp_path / 'out'}"]
    assert deploy.main(args) == code
    out, err = capsys.readouterr()
    assert message in out + err and "internal error" not in out + err
    assert (tmp_path / "out" / "log.h5").is_file()
    assert json.loads((tmp_path / "out" / "deploy.json").read_text())["tripped"]


def test_joints_turn_further_where_the_user_lets_the_robot_lie(
    tmp_path: Path, monkeypatch: MonkeyPatch, printed: Says, refused: Says
) -> None:
    """By 3.14 rad at hips and knees, as task recover has it; not by what the file says."""
    turning = [
        replace(joint, range=[-3.14, 3.14]) if joint.name[-3:] in ("HFE", "KFE") else joint
        for joint in contract_of().joints
    ]
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), joints=turning))
    args = ["bundle", *QUICK, f"out={tmp_path / 'out'}"]
    assert "lower range of LF_HFE=-3.14: must be within -1.6" in refused(*args, by=deploy.main)
    printed(*args, "safety.tilt_deg=180", by=deploy.main)
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), joints=wider("range", [-3.2, 1])))
    assert "of LH_KFE=-3.2" in refused(*args, "safety.tilt_deg=180", by=deploy.main)


def test_gains_of_fitted_drives_where_the_user_names_them(
    tmp_path: Path, monkeypatch: MonkeyPatch, printed: Says, refused: Says
) -> None:
    scales = [[0.1, 1.0], [0.0, 0.0], 7.0, [45.0, 1.5, 0.1]]
    for folder, damping in (("knee", 1.5), ("limp", -1.0)):
        scales[-1] = [45.0, damping, 0.1]
        make(ActuatorContract("mlp", 400.0, ["knee"], [], False, *scales)).save(tmp_path / folder)
    fitted = [replace(joint, kp=45.0, kd=1.5) for joint in contract_of().joints]
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), joints=fitted))
    args = ["bundle", *QUICK, f"out={tmp_path / 'out'}"]
    assert "kp of LF_HAA=45: must be within 99.9 to 100.1" in refused(*args, by=deploy.main)
    printed(*args, f"actuator={tmp_path / 'knee'}", by=deploy.main)
    assert "kd of LF_HAA=1.5" in refused(*args, f"actuator={tmp_path / 'limp'}", by=deploy.main)
    limp = [replace(joint, kd=0.0) for joint in fitted]
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), joints=limp))
    assert "kd of LF_HAA of 'anymal_b'" in refused(
        *args, f"actuator={tmp_path / 'limp'}", by=deploy.main
    )


def test_servos_without_a_gain_on_velocity_and_joints_in_another_order() -> None:
    """The OP3 is described with kd 0."""
    contract = contract_of("op3")
    check_limits(replace(contract, joints=contract.joints[::-1]), robots.load("op3"))
    damped = [replace(joint, kd=0.2) for joint in contract.joints]
    with pytest.raises(InputError, match="kd of head_pan"):
        check_limits(replace(contract, joints=damped), robots.load("op3"))


QUICK_OWN = ("controller.stand_s=0.2", "seconds=0.2", "safety.missed_deadlines=100")


@pytest.mark.parametrize(
    ("method", "raises", "code", "message"),
    [
        # the first two times that it is told to, then once more when all is over
        (
            "def stop(self):",
            "if self.stops < 3: raise OSError('bus off')",
            3,
            "raised by the driver",
        ),
        ("def stop(self):", "raise OSError('bus off')", 2, "when it was stopped"),
        ("def read(self):", "if self.reads > 9: raise SystemExit(0)", 3, "raised by the driver"),
        ("        self.pos =", "raise SystemExit(0)", 2, "when it was constructed"),
    ],
)
def test_no_failure_of_a_driver_ends_well(
    method: str, raises: str, code: int, message: str, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    counted = "self.stops = getattr(self, 'stops', 0) + 1; self.reads = getattr(self, 'reads', 0)"
    line = f"        {counted} + 1\n        {raises}\n"
    within = f"{line}{method}" if method.startswith(" ") else f"{method}\n{line}"
    (tmp_path / "mine.py").write_text(OWN.replace(method, within))
    out = tmp_path / "out"
    args = ["bundle", f"robot={tmp_path}/mine.py:Hanging", *QUICK_OWN, "safety.state_age_s=1.0"]
    assert deploy.main([*args, f"out={out}"]) == code
    output = "".join(capsys.readouterr())
    assert message in output and "internal error" not in output
    if "self.pos" not in method:
        assert json.loads((out / "deploy.json").read_text())["tripped"]
        assert read_log(out).acting.any() or "reads" in raises


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["robot=real"], "FILE.py:CLASS"),
        (["robot=os.path:join"], "methods read, write, stop"),
        (["robot=mine.py:Mine", "sim.loss=0.1"], "sim.loss=0.1 is of robot=sim, not of mine.py"),
        (["command=[1,2,3]"], "forward_mps, turn_rps"),
        (["safety.state_age_s=0.5"], "safety.state_age_s=0.5"),
    ],
)
def test_what_a_user_gets_wrong(
    arguments: list[str], message: str, tmp_path: Path, refused: Says
) -> None:
    args = arguments if any(a.startswith("robot=") for a in arguments) else [*QUICK, *arguments]
    assert message in refused("bundle", *args, f"out={tmp_path / 'out'}", by=deploy.main)
    assert not (tmp_path / "out").exists()


def test_a_sensor_that_the_driver_lacks_is_named(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    """By a dry run, and in deploy.json."""
    names = [f"ground_LF_FOOT_+0.00_{y}_m" for y in ("-0.05", "+0.05")]
    monkeypatch.setattr(Stand, "contract", replace(contract_of(), extra_inputs=names))
    own = tmp_path / "own.py"
    own.write_text(OWN)
    driver = f"robot={own}:Hanging"
    missing = "but the driver Hanging has no read_heights()"
    # its IMU is as still as none is
    assert deploy.main(["bundle", driver, "dry=true", f"out={tmp_path / 'dry'}"]) == 3
    message = capsys.readouterr().out
    assert "the policy observes 2 values (ground_LF_FOOT_+0.00_-0.05_m, ...)" in message
    assert missing in message
    out = tmp_path / "run"
    deploy.main(["bundle", driver, "seconds=0.1", f"out={out}"])
    (_, reason), *others = json.loads((out / "deploy.json").read_text())["terrain"]
    assert missing in reason and not others
