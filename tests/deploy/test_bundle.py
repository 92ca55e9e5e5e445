"""Bundles: the outputs of their policy, and the refusal of invalid ones."""

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
from npmp.deploy.bundle import CONTRACT, GOLDEN, GRAPH
from npmp.deploy.contract import MEMORY
from npmp.deploy.onnx_policy import check_parity
from npmp.deploy.robot import FloatArray
from tests.deploy.standins import DEPTH_CAMERA, HOME, joint, toy, toy_golden, toy_graph, write_toy
from tests.refusals import refusal

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
STILL = Readings(HOME, np.zeros(3), np.array([0.0, 0.0, 9.81]), np.array([0.0, 0.0, 1.0]))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_toy(tmp_path / "bundle")


# --- acting ---


def test_the_policy_observes_its_memory_and_last_setpoint(bundle: Bundle) -> None:
    policy = bundle.policy()
    # at rest: (1 g, 0); then half of that and h_low = 1: (2.5, 1); then (1.25 + 3, 0.5 + 2)
    for action in ((1.0, 0.0), (2.5, 1.0), (4.25, 2.5)):
        target = policy.act(STILL, [0.0])
        np.testing.assert_allclose(target - HOME, action, rtol=1e-6)
        target += 100.0  # a copy
    policy.reset()
    moved = STILL._replace(joint_pos=HOME + [0.25, 0.5], gyro=[0.125, 7.0, 7.0])
    expected = (0.25 + 1.0 + 2.0, 0.5 + 0.125 + 2.0)
    np.testing.assert_allclose(policy.act(moved, [2.0]) - HOME, expected, rtol=1e-6)
    # `step` leaves the policy's own memory unchanged: half of (4, 2), 1 g, h_low 7
    memory = {name: np.full((1, 1), 7.0, np.float32) for name in MEMORY}
    target, after = policy.step(STILL, [0.0], HOME + [4.0, 2.0], memory)
    np.testing.assert_allclose(target - HOME, (10.0, 8.0), rtol=1e-6)
    assert after["h_low"] == 8.0 and memory["h_low"] == 7.0
    # half of the (3.25, 2.625) before, 1 g, h_low 1
    np.testing.assert_allclose(policy.act(STILL, [0.0]) - HOME, (3.625, 2.3125), rtol=1e-6)


def test_terrain_follows_the_clock_and_is_level_by_default() -> None:
    """The toy adds all of its inputs: a clock of four steps, and two heights, of 0.02 m when level.
    The knee also has h_low, the number of steps, and half of its last action."""
    names = ["clock_sin", "clock_cos", "ground_L_+0.00_-0.05_m", "ground_L_+0.00_+0.05_m"]
    contract = toy(extra_inputs=names, clock_s=0.08, level_m=0.02)
    policy = OnnxPolicy(contract, toy_graph(contract))
    outputs = {}
    for terrain in ([], [0.3, -0.1], [0.02, 0.02]):
        policy.reset()
        outputs[len(terrain), sum(terrain)] = [
            policy.act(STILL, np.array([0.5, *terrain]))[1] for _ in range(2)
        ]
    # 0.5 + (0 + 1) + heights; then 0.5 + (1 + 0) + heights, half of the last, and one step
    for (_, height), (first, second) in outputs.items():
        expected = 1.5 + (height or 0.04)
        assert first == pytest.approx(HOME[1] + expected, abs=1e-6)
        assert second == pytest.approx(HOME[1] + 1.5 * expected + 1.0, abs=1e-6)
    with pytest.raises(ValueError, match=r"command is \(2,\), expected \(5,\)"):
        policy.act(STILL, np.zeros(2))


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
    ("readings", "command", "key"),
    [
        (STILL._replace(joint_pos=0.5), [0.0], "joint_pos"),
        (STILL._replace(gyro=np.zeros((1, 3))), [0.0], "gyro"),
        (STILL, [0.0, 0.0], "command"),
        (STILL, [np.nan], "command"),
        (STILL._replace(gyro=[-np.inf, np.inf, 0.0]), [0.0], "obs"),
    ],
)
def test_invalid_inputs_are_refused_and_leave_the_memory_unchanged(
    bundle: Bundle, readings: Readings, command: list[float], key: str
) -> None:
    policy = bundle.policy()
    policy.act(STILL, [0.0])
    with pytest.raises(ValueError, match=key):
        policy.act(readings, command)
    np.testing.assert_allclose(policy.act(STILL, [0.0]) - HOME, (2.5, 1.0), rtol=1e-6)


@pytest.mark.parametrize("output", ["action", "h_low_next"])
def test_an_output_that_is_not_finite_leaves_the_memory_unchanged(output: str) -> None:
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
    with pytest.raises(ValueError, match="finite"):
        policy.act(STILL, [0.0])
    np.testing.assert_allclose(policy.act(STILL, [1.0]) - HOME, (4.0, 2.5), rtol=1e-6)


def test_rounding_does_not_accumulate_over_golden_steps(bundle: Bundle) -> None:
    policy, golden = bundle.policy(), bundle.golden()
    parity = check_parity(policy, golden)
    assert parity.difference < 1e-7 and len(parity.seconds) == 100

    def size(values: FloatArray) -> float:
        return float(np.sqrt(np.mean(values**2)))

    # in one of 100 steps, and as the setpoint of the next, whose target moves by half
    target = golden.target.copy()
    target[50, 1] += 0.25
    error = check_parity(policy, golden._replace(target=target)).difference
    assert error == pytest.approx(0.1 * 0.25 * np.sqrt(1.25) / size(target[:, 1]), rel=1e-4)
    # after one step and before the next, whose memory then has the same error
    memory = golden.memory.copy()
    memory[50, MEMORY.index("h_low")] += 0.5
    error = check_parity(policy, golden._replace(memory=memory)).difference
    h_low = memory[:, MEMORY.index("h_low")]
    assert error == pytest.approx(0.1 * 0.5 * np.sqrt(2.0) / size(h_low), rel=1e-4)


def test_steps_from_random_memory_are_compared_separately(bundle: Bundle) -> None:
    """A weight that counts only there would be averaged away among the others."""
    golden, policy = bundle.golden(), bundle.policy()
    last = np.arange(100) >= 96
    memory = golden.memory + np.float32(2.0) * last[:, None].astype(np.float32)
    target = golden.target.copy()
    # h_low is 2 more: a target is 2 more, plus half of the difference of the one before
    target[last] += np.array([[2.0], [3.0], [3.5], [3.75]])
    random = golden._replace(memory=memory, target=target)
    assert check_parity(policy, random).difference < 1e-6
    target[97, 0] += 0.2
    error = check_parity(policy, random._replace(target=target)).difference
    assert error == pytest.approx(
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


def test_without_onnxruntime_the_error_names_the_package(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refusal(r"needs onnxruntime: pip install 'npmp\[deploy\]'", bundle.policy)


# --- files ---


def test_numbers_are_exact_and_lists_on_one_line(tmp_path: Path) -> None:
    joints = [joint("hip", anchor=[1.0 / 3.0, np.nextafter(0.5, 1.0), -0.25]), joint("knee")]
    assert write_toy(tmp_path, joints=joints).contract.joints == joints
    assert '"axis": [0.0, 1.0, 0.0],\n' in (tmp_path / CONTRACT).read_text()


@pytest.mark.parametrize("name", [CONTRACT, GRAPH, GOLDEN])
def test_a_flipped_bit_or_a_missing_file_is_refused(bundle: Bundle, name: str) -> None:
    path = bundle.folder / name
    whole = path.read_bytes()
    blank = b" \n" if name == CONTRACT else b""  # insignificant in JSON
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
CAMERA = {**DEPTH_CAMERA, "size": [1, 1]}
SEEING = {"extra_inputs": ["depth_0_0_m"], "camera": CAMERA, "level_depths_m": [1.0]}
SPEED = {"name": "forward_mps", "unit": "m/s", "range": [-1.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"version": 2}, "version=2"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": "high"}]}, "kp"),
        # 10 Nm: at less than 0.005 rad, or at more than 50 rad
        ({"joints": [HIP | {"kp": 2001.0}]}, "hip: kp=2001"),
        ({"joints": [HIP | {"kp": 0.19}]}, "hip: kp=0.19"),
        ({"joints": [HIP | {"kd": 10.1}]}, "hip: kd=10.1"),
        ({"joints": [HIP, HIP | {"name": "knee", "kd": -0.2}]}, "knee: kd=-0.2"),
        ({"joints": [HIP | {"torque_limit": 1001.0}]}, "hip: torque_limit=1001"),
        ({"joints": [HIP | {"velocity_limit": 101.0}]}, "hip: velocity_limit=101"),
        ({"joints": [HIP | {"velocity_limit": 0.0}]}, "hip: velocity_limit=0"),
        ({"joints": [HIP | {"range": [-50.0, 50.0]}]}, "hip: range="),
        ({"joints": [HIP | {"home": -1.1}]}, "hip: home=-1.1"),
        ({"joints": [HIP, HIP]}, "joints="),
        ({"commands": [SPEED | {"range": [-1.0, 1e9]}]}, "forward_mps: range="),
        # an ending without a unit counts as a velocity
        (
            {"commands": [SPEED | {"name": "forward_speed", "unit": "", "range": [0.0, 50.0]}]},
            "forward_speed: range=",
        ),
        ({"commands": [SPEED | {"unit": "m"}]}, "forward_mps: unit="),
        ({"commands": [SPEED | {"name": "ball_m", "unit": "m", "range": [-101.0, 1.0]}]}, "ball_m"),
        ({"commands": [SPEED | {"range": [1.0, -1.0]}]}, "forward_mps: range="),
        ({"control_rate_hz": 0.01}, "control_rate_hz"),
        ({"hold": "third_order"}, "hold"),
        ({"extra_inputs": ["clock_sin", "clock_cos"]}, "extra_inputs"),
        ({"extra_inputs": ["depth_0_0_m"], "camera": {"size": [1, 1]}}, "camera.range_m=None"),
        ({"extra_inputs": ["ground_left_m"]}, "extra_inputs"),
        ({"extra_inputs": ["rain_m"]}, "extra_inputs"),
        ({"level_m": 0.6}, "level_m=0.6"),
        (SEEING | {"camera": CAMERA | {"size": [2, 1]}}, "2 x 1 as of camera.size"),
        (SEEING | {"camera": CAMERA | {"size": [1.0, 1.0]}}, "camera.size"),
        (SEEING | {"camera": CAMERA | {"range_m": [4.0, 0.2]}}, "camera.range_m"),
        (SEEING | {"camera": CAMERA | {"rate_hz": 0.0}}, "rate_hz must be above 0"),
        (SEEING | {"camera": CAMERA | {"place_m": [0.0, 0.0, 1e9]}}, "camera.place_m"),
        (SEEING | {"level_depths_m": [9.0]}, "level_depths_m"),
        ({"level_depths_m": [1.0]}, "camera.size=None"),
        ({"files": {GRAPH: "0"}}, "files="),
        ({"color": "red"}, "color"),
        # valid, but not the copy in the graph
        ({"joints": [HIP, HIP | {"name": "knee", "kp": 10.000000001}]}, GRAPH),
    ],
)
def test_an_invalid_contract_is_refused(bundle: Bundle, changes: dict[str, Any], key: str) -> None:
    path = bundle.folder / CONTRACT
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refusal(key, Bundle.read, bundle.folder)


def test_a_graph_that_does_not_fit_is_refused(bundle: Bundle) -> None:
    wider = replace(bundle.contract, memory={**bundle.contract.memory, "z": 2})
    refusal("policy.onnx", OnnxPolicy, wider, toy_graph(toy()))
    refusal("policy.onnx", OnnxPolicy, bundle.contract, b"no graph")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"gyro": np.full((100, 3), np.nan)}, "gyro"),
        ({"command": np.zeros((100, 1), int)}, "command"),
        ({"reset": np.arange(100) == 0}, "1 resets"),
        (toy_golden(99)._asdict(), "99 steps"),
        ({"reset": np.ones(20_001, bool)}, "20,001 steps"),
        ({"rounding": np.zeros(6)}, "rounding"),
        # 300 MB of zeros in a file of 300 kB
        ({"gyro": np.zeros(300_000_000, np.int8)}, "268,435,456"),
    ],
)
def test_an_invalid_golden_rollout_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    refusal(key, write_toy(tmp_path, golden=changes).golden)
