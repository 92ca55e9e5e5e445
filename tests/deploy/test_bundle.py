"""Bundles: what they answer, and what of them is refused."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmp.deploy import Bundle, OnnxPolicy, Readings
from npmp.deploy.bundle import CONTRACT, GOLDEN, GRAPH, SCHEMA, VERSION
from npmp.deploy.contract import MEMORY
from npmp.deploy.onnx_policy import check_parity
from npmp.deploy.robot import FloatArray
from tests.deploy.standins import HOME, joint, toy, toy_golden, toy_graph, write_toy
from tests.refusals import refusal

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
STILL = Readings(HOME, np.zeros(3), np.array([0.0, 0.0, 9.81]), np.array([0.0, 0.0, 1.0]))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_toy(tmp_path / "bundle")


# --- acting ---


def test_it_answers_with_memory_and_its_own_last_setpoint(bundle: Bundle) -> None:
    policy = bundle.policy()
    # at rest: (1 g, 0); then half of that and h_low = 1: (2.5, 1); then (1.25 + 3, 0.5 + 2)
    for action in ((1.0, 0.0), (2.5, 1.0), (4.25, 2.5)):
        answer = policy.act(STILL, [0.0])
        np.testing.assert_allclose(answer - HOME, action, rtol=1e-6)
        answer += 100.0  # it is the caller's own
    policy.reset()
    moved = STILL._replace(joint_pos=HOME + [0.25, 0.5], gyro=[0.125, 7.0, 7.0])
    expected = (0.25 + 1.0 + 2.0, 0.5 + 0.125 + 2.0)
    np.testing.assert_allclose(policy.act(moved, [2.0]) - HOME, expected, rtol=1e-6)
    # from any memory and setpoint, which changes nothing of its own: half of (4, 2), 1 g, h_low 7
    memory = {name: np.full((1, 1), 7.0, np.float32) for name in MEMORY}
    answer, after = policy.answer(STILL, [0.0], HOME + [4.0, 2.0], memory)
    np.testing.assert_allclose(answer - HOME, (10.0, 8.0), rtol=1e-6)
    assert after["h_low"] == 8.0 and memory["h_low"] == 7.0
    # half of the (3.25, 2.625) before, 1 g, h_low 1
    np.testing.assert_allclose(policy.act(STILL, [0.0]) - HOME, (3.625, 2.3125), rtol=1e-6)


def test_the_same_bits_every_time_for_arrays_of_any_kind(bundle: Bundle) -> None:
    rng = np.random.default_rng(0)
    rows = [Readings(rng.normal(size=2), *rng.normal(size=(3, 3))) for _ in range(20)]
    first, second = bundle.policy(), bundle.policy()
    answers = [first.act(row, [0.3]) for row in rows]
    lists = [Readings(*(value.tolist() for value in map(np.asarray, row))) for row in rows]
    np.testing.assert_array_equal([second.act(row, [0.3]) for row in lists], answers)
    first.reset()
    swapped = [Readings(*(np.asarray(value).astype(">f8") for value in row)) for row in rows]
    np.testing.assert_array_equal([first.act(row, [0.3]) for row in swapped], answers)


def test_a_task_without_a_command() -> None:
    described = toy(commands=[])
    policy = OnnxPolicy(described, toy_graph(described))
    np.testing.assert_allclose(policy.act(STILL, []) - HOME, (1.0, 0.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("readings", "command", "said"),
    [
        (STILL._replace(joint_pos=np.zeros(3)), [0.0], "joint_pos must be 2 numbers"),
        (STILL._replace(joint_pos=0.5), [0.0], "joint_pos must be 2 numbers"),
        (STILL._replace(gyro=np.zeros((1, 3))), [0.0], "gyro must be 3 numbers"),
        (STILL._replace(accelerometer=np.zeros(2)), [0.0], "accelerometer must be 3 numbers"),
        (STILL, [0.0, 0.0], "command must be 1 numbers"),
        (STILL, [np.nan], "senses or is commanded"),
        (STILL._replace(gyro=[-np.inf, np.inf, 0.0]), [0.0], "senses or is commanded"),
    ],
)
def test_what_it_is_not_made_for_is_refused_and_not_remembered(
    bundle: Bundle, readings: Readings, command: list[float], said: str
) -> None:
    policy = bundle.policy()
    policy.act(STILL, [0.0])
    with pytest.raises(ValueError, match=said):
        policy.act(readings, command)
    np.testing.assert_allclose(policy.act(STILL, [0.0]) - HOME, (2.5, 1.0), rtol=1e-6)


@pytest.mark.parametrize("output", ["action", "h_low_next"])
def test_an_answer_that_is_not_finite_is_not_remembered(output: str) -> None:
    """The toy's action, or its memory, times command over command: no number where that is 0."""
    import onnx

    model = onnx.load_model_from_string(toy_graph(toy()))
    last = next(node for node in model.graph.node if node.output[0] == output)
    last.output[0] = "plain"
    for kind, inputs, made in (
        ("Div", ("command", "command"), "share"),
        ("Mul", ("plain", "share"), output),
    ):
        model.graph.node.append(onnx.helper.make_node(kind, inputs, [made]))
    policy = OnnxPolicy(toy(), model.SerializeToString())
    np.testing.assert_allclose(policy.act(STILL, [1.0]) - HOME, (2.0, 1.0), rtol=1e-6)
    with pytest.raises(ValueError, match="the policy's answer is not finite"):
        policy.act(STILL, [0.0])
    np.testing.assert_allclose(policy.act(STILL, [1.0]) - HOME, (4.0, 2.5), rtol=1e-6)


def test_each_golden_step_is_judged_by_itself(bundle: Bundle) -> None:
    policy, golden = bundle.policy(), bundle.golden()
    parity = check_parity(policy, golden)
    assert parity.difference < 1e-7 and len(parity.seconds) == 100

    def size(values: FloatArray) -> float:
        return float(np.sqrt(np.mean(values**2)))

    # in one of 100 steps, and as the next step's setpoint, which moves its answer by half
    target = golden.target.copy()
    target[50, 1] += 0.25
    off = check_parity(policy, golden._replace(target=target)).difference
    assert off == pytest.approx(0.1 * 0.25 * np.sqrt(1.25) / size(target[:, 1]), rel=1e-4)
    # after one step and before the next, whose memory is then as much off
    memory = golden.memory.copy()
    memory[50, MEMORY.index("h_low")] += 0.5
    off = check_parity(policy, golden._replace(memory=memory)).difference
    h_low = memory[:, MEMORY.index("h_low")]
    assert off == pytest.approx(0.1 * 0.5 * np.sqrt(2.0) / size(h_low), rel=1e-4)


def test_steps_from_random_memory_are_judged_apart(bundle: Bundle) -> None:
    """A weight that counts only there would be averaged away among the others."""
    golden, policy = bundle.golden(), bundle.policy()
    last = np.arange(100) >= 96
    memory = golden.memory + np.float32(2.0) * last[:, None].astype(np.float32)
    target = golden.target.copy()
    # h_low is 2 more: a step answers 2 more, and half of what the one before answered more
    target[last] += np.array([[2.0], [3.0], [3.5], [3.75]])
    random = golden._replace(memory=memory, target=target)
    assert check_parity(policy, random).difference < 1e-6
    target[97, 0] += 0.2
    off = check_parity(policy, random._replace(target=target)).difference
    assert off == pytest.approx(
        0.5 * 0.2 * 1.118 / np.sqrt(np.mean(target[last, 0] ** 2)), rel=1e-3
    )


def test_nothing_heavy_is_imported(bundle: Bundle) -> None:
    check = (
        "import sys\nfrom npmp.deploy import Bundle, Readings\n"
        f"policy = Bundle.read({str(bundle.folder)!r}).policy()\n"
        "policy.act(Readings([0, 0], [0] * 3, [0] * 3, [0, 0, 1]), [0])\n"
        "heavy = {'torch', 'mujoco', 'hydra', 'matplotlib', 'onnx', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"


def test_without_onnxruntime_it_says_what_to_install(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refusal(r"needs onnxruntime: pip install 'npmp\[deploy\]'", bundle.policy)


# --- files ---


def test_numbers_come_back_as_they_were_and_lists_stand_on_one_line(tmp_path: Path) -> None:
    joints = [joint("hip", anchor=[1.0 / 3.0, np.nextafter(0.5, 1.0), -0.25]), joint("knee")]
    assert write_toy(tmp_path, joints=joints).contract.joints == joints
    assert '"axis": [0.0, 1.0, 0.0],\n' in (tmp_path / CONTRACT).read_text()


@pytest.mark.parametrize("name", [CONTRACT, GRAPH, GOLDEN])
def test_a_flipped_bit_or_a_missing_file_is_refused(bundle: Bundle, name: str) -> None:
    path = bundle.folder / name
    whole = path.read_bytes()
    blank = b" \n" if name == CONTRACT else b""  # JSON does not care
    for place in range(0, len(whole), max(1, len(whole) // 100)):
        if whole[place] in blank:
            continue
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refusal("", Bundle.read, bundle.folder)
    path.write_bytes(whole)
    Bundle.read(bundle.folder)
    path.unlink()
    refusal(name, Bundle.read, bundle.folder)


HIP = asdict(joint("hip", home=0.1))
SPEED = {"name": "forward_mps", "unit": "m/s", "range": [-1.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "npmp-policy"}, SCHEMA),
        ({"version": 2}, f"has version 2, expected {VERSION}; export its policy again"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": "high"}]}, "kp"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": 0.0}]}, "knee: kp=0: must be from"),
        # 10 Nm: at 0.005 rad already, or not before 50 rad
        ({"joints": [HIP | {"kp": 2001.0}]}, "hip: kp=2001: must be from 0.2 to 2000"),
        ({"joints": [HIP | {"kp": 0.19}]}, "hip: kp=0.19: must be from 0.2 to 2000"),
        ({"joints": [HIP | {"kd": 10.1}]}, "hip: kd=10.1: must be from 0 to 10"),
        ({"joints": [HIP | {"torque_limit": 1001.0}]}, "hip: torque_limit=1001"),
        ({"joints": [HIP | {"velocity_limit": 101.0}]}, "hip: velocity_limit=101"),
        ({"joints": [HIP | {"range": [-50.0, 50.0]}]}, "hip: range="),
        ({"commands": [SPEED | {"range": [-1.0, 1e9]}]}, "forward_mps: range="),
        # of an ending that says no unit: bound as a velocity
        ({"commands": [SPEED | {"name": "forward_speed", "unit": "m"}]}, "forward_speed: unit='m'"),
        (
            {"commands": [SPEED | {"name": "forward_speed", "unit": "", "range": [0.0, 50.0]}]},
            "forward_speed: range=",
        ),
        ({"commands": [SPEED | {"unit": "m"}]}, "forward_mps: unit="),
        ({"commands": [SPEED | {"name": "ball_m", "unit": "m", "range": [-101.0, 1.0]}]}, "ball_m"),
        ({"control_rate_hz": 1.0}, "control_rate_hz"),
        ({"joints": [HIP, HIP | {"name": "knee", "kd": -0.2}]}, "knee: kd=-0.2: must be from 0"),
        ({"joints": [HIP | {"velocity_limit": 0.0}]}, "hip: velocity_limit=0: must be above 0"),
        ({"joints": [HIP | {"home": -1.1}]}, "hip: home -1.1 lies outside range"),
        ({"joints": [HIP | {"range": [1.0, -1.0]}]}, "hip: home 0.1 lies outside range"),
        ({"joints": [HIP, HIP]}, "each with a name of its own"),
        ({"joints": []}, "joints must be at least one"),
        ({"commands": [{"name": "a", "unit": "m", "range": [1.0, -1.0]}]}, "range needs"),
        ({"imu_position": []}, "imu_position needs three numbers"),
        ({"control_rate_hz": 0.01}, "control_rate_hz"),
        ({"physics_rate_hz": 1e9}, "physics_rate_hz"),
        ({"hold": "third_order"}, "hold"),
        ({"observation": []}, "observation"),
        ({"extra_inputs": ["height_of_tide_m"]}, "extra_inputs"),
        ({"extra_inputs": ["clock_sin", "clock_cos"]}, "extra_inputs"),
        ({"clock_s": 0.5}, "extra_inputs"),
        ({"extra_inputs": ["clock_sin", "clock_cos"], "clock_s": 0.0}, "extra_inputs"),
        (
            {"extra_inputs": ["ground_a_m", "clock_sin", "clock_cos"], "clock_s": 0.5},
            "extra_inputs",
        ),
        ({"extra_inputs": ["depth_0_0_m"], "level_depths_m": [1.0]}, "extra_inputs"),
        ({"extra_inputs": ["depth_0_0_m"], "camera": {"size": [1, 1]}}, "extra_inputs"),
        ({"files": {GRAPH: "0"}}, "has the files"),
        ({"color": "red"}, "color"),
        # what could be, but is not what the graph repeats
        ({"robot": "another"}, "repeats it otherwise"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": 10.000000001}]}, "repeats it otherwise"),
    ],
)
def test_a_contract_that_cannot_be_is_refused(
    bundle: Bundle, changes: dict[str, Any], said: str
) -> None:
    path = bundle.folder / CONTRACT
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refusal(said, Bundle.read, bundle.folder)


def test_a_graph_that_does_not_fit_is_refused(bundle: Bundle) -> None:
    wider = replace(bundle.contract, memory={**bundle.contract.memory, "z": 2})
    refusal("does not fit its bundle", OnnxPolicy, wider, toy_graph(toy()))
    refusal("", OnnxPolicy, bundle.contract, b"no graph")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gyro": np.zeros((100, 2))}, r"gyro is \(100, 2\), expected \(100, 3\)"),
        ({"gyro": np.full((100, 3), np.nan)}, "gyro must be finite numbers"),
        ({"target": np.full((100, 2), "0.1")}, "target must be finite numbers"),
        ({"command": np.zeros((100, 1), int)}, "command must be finite numbers"),
        ({"memory": np.zeros((100, 4))}, r"memory is \(100, 4\), expected \(100, 5\)"),
        ({"reset": np.arange(100) % 50 == 1}, "true at the first"),
        ({"reset": np.ones(100)}, "true or false"),
        ({"reset": np.arange(100) == 0}, "100 steps; 100 with 2 resets"),
        ({"reset": np.array(True)}, "true or false"),
        ({"more": np.zeros(1)}, "has the arrays"),
        (toy_golden(99)._asdict(), "99 steps"),
        ({"rounding": np.zeros(6)}, "rounding must be 7 numbers"),
        ({"reset": np.ones(20_001, bool)}, "20,001 steps; at most 20,000"),
        # 300 MB of zeros in a file of 300 kB
        ({"gyro": np.zeros(300_000_000, np.int8)}, "unpacks to 3.* bytes; at most 268,435,456"),
    ],
)
def test_a_golden_rollout_that_says_nothing_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    refusal(said, write_toy(tmp_path, golden=changes).golden)
