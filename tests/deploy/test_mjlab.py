"""A bundle as mjlab's exports are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from npmp.deploy import mjlab
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import GRAVITY, Command
from npmp.deploy.onnx_policy import Readings
from tests.deploy.standins import toy, toy_graph
from tests.refusals import refusal

THREE = [Command(f"c{k}_mps", "m/s", [-1.0, 1.0]) for k in range(3)]


@pytest.mark.parametrize("hold", ["first_order", "zero_order"])
def test_calls_make_control_steps(tmp_path: Path, hold: str) -> None:
    """Control steps with resets, against the bundle's own graph: the velocity of an IMU off the
    root is integrated from what its accelerometer reads, the gyro's mean is made of its readings,
    targets go linearly from one to the next."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    contract = toy(commands=THREE, imu_position=[0.2, -0.1, 0.3], hold=hold)
    bundle = Bundle(tmp_path, contract, {"policy.onnx": toy_graph(contract)})
    mjlab.write(tmp_path, bundle)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    outer, *memories = session.get_inputs()
    assert outer.name == "obs" and outer.shape == [1, 3 + 3 + 3 + 2 + 2 + 3]
    ends = [one.name for one in session.get_outputs()]
    assert ends == ["actions", *(f"{one.name}_next" for one in memories)]

    rng, policy, arm = np.random.default_rng(0), bundle.policy(), np.array(contract.imu_position)
    period, off, calls = 1.0 / contract.control_rate_hz, 0.0, mjlab.calls_of(contract)
    for step in range(1000):
        begins = step % 50 == 0
        if begins:
            policy.reset()
            memory = {one.name: np.zeros(one.shape, np.float32) for one in memories}
            velocity, last = (step > 0) * rng.normal(size=3), np.zeros(2)  # first at rest
            turning = []
        up, accelerometer, now = rng.normal(size=(3, 3))
        gyro = np.mean([*turning, now], axis=0)
        pos, command = rng.uniform(-0.5, 0.5, 2), rng.uniform(-1.0, 1.0, 3)
        if begins:  # how it came to move is not known
            accelerometer = GRAVITY * up
        else:
            gained = accelerometer - GRAVITY * up
            velocity = velocity + period * (gained - np.cross(gyro, velocity))
        parts = (velocity - np.cross(now, arm), now, -up, pos - contract.home_pose, last, command)
        sensed = policy.act(Readings(pos, gyro, accelerometer, up), command) - contract.home_pose
        before, last = last, sensed
        turning = rng.normal(size=(calls - 1, 3))
        for call in range(calls):
            if call:  # between control steps only the gyro counts
                parts = (*rng.normal(size=(1, 3)), turning[call - 1], up, pos, last, command)
            given = {"obs": np.concatenate(parts)[None].astype(np.float32)}
            (action,), *after = session.run(None, given | memory)
            memory = dict(zip(memory, after))
            expected = before + (call + 1) / calls * (last - before)
            off = max(off, float(np.abs(action - expected).max()))
    assert off < 1e-5 * 50  # h_low counts to 50, and float32 with it


def test_what_others_read(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    contract = toy(commands=THREE)
    mjlab.write(tmp_path, Bundle(tmp_path, contract, {"policy.onnx": toy_graph(contract)}))
    told = {one.key: one.value for one in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert told["joint_names"] == "hip,knee" and told["default_joint_pos"] == "0.1,-0.1"
    assert told["joint_stiffness"] == "10,10" and told["action_scale"] == "1,1"
    settings = yaml.safe_load((tmp_path / "deploy.yaml").read_text())
    assert settings["step_dt"] == 0.02 / 4 and settings["joint_ids_map"] == [0, 1]
    assert settings["commands"]["base_velocity"]["ranges"]["lin_vel_y"] == [-1.0, 1.0]
    assert len(settings["observations"]) == len(told["observation_names"].split(","))


def test_gains_are_in_the_order_of_the_motors() -> None:
    """A Go2's bundle begins with the left front leg, its motors with the right one."""
    from tests.deploy.standins import contract_of

    contract = contract_of("unitree_go2")
    settings = mjlab.deploy_settings(contract)
    assert settings["joint_ids_map"][:3] == [3, 4, 5]
    home = dict(zip(contract.joint_names, contract.home_pose))
    assert settings["default_joint_pos"][0] == home["FL_hip_joint"] == 0.1
    assert settings["default_joint_pos"] == settings["actions"]["JointPositionAction"]["offset"]
    kp = {joint.name: joint.kp for joint in contract.joints}
    assert settings["stiffness"][:3] == [
        kp[f"FR_{part}_joint"] for part in ("hip", "thigh", "calf")
    ]


def test_other_policies_are_refused(tmp_path: Path) -> None:
    for contract, message in (
        (toy(), "forward_mps"),
        (toy(commands=THREE, accelerometer="root"), "root"),
    ):
        refusal(message, mjlab.write, tmp_path, Bundle(tmp_path, contract, {"policy.onnx": b""}))
    assert not list(tmp_path.iterdir())
