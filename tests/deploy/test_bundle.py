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

from mocap_data.errors import InputError
from npmp.deploy import Bundle, OnnxPolicy, Readings
from npmp.deploy.bundle import CONTRACT, GOLDEN, GRAPH, SCHEMA, VERSION
from npmp.deploy.onnx_policy import check_parity
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
    policy.reset()
    policy.act(STILL, [0.0])
    answer = policy.act(STILL, [0.0], setpoint=HOME + [4.0, 2.0])  # not its own
    np.testing.assert_allclose(answer - HOME, (4.0, 2.0), rtol=1e-6)


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


def test_its_golden_rollout(bundle: Bundle) -> None:
    parity = check_parity(bundle.policy(), bundle.golden())
    assert parity.magnified < 1e-6 and len(parity.seconds) == 100
    off = bundle.golden()._replace(target=bundle.golden().target + np.array([0.0, 0.25]))
    # at the first step
    assert check_parity(bundle.policy(), off).difference == pytest.approx(0.25, abs=1e-6)


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "npmp-policy"}, SCHEMA),
        ({"version": 1}, f"has version 1, expected {VERSION}; export its policy again"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": "high"}]}, "kp"),
        ({"joints": [HIP, HIP | {"name": "knee", "kp": 0.0}]}, "knee: kp must be above 0"),
        ({"joints": [HIP, HIP | {"name": "knee", "kd": -0.2}]}, "knee: kd must be at least 0"),
        ({"joints": [HIP | {"velocity_limit": 0.0}]}, "hip: velocity_limit must be above 0"),
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


def test_a_graph_that_may_never_end_is_refused() -> None:
    """Counted on for ever, as the condition of the loop stays true."""
    import onnx

    model, make = onnx.load_model_from_string(toy_graph(toy())), onnx.helper
    counted = [
        make.make_tensor_value_info(name, kind, [])
        for name, kind in (("i", onnx.TensorProto.INT64), ("go", onnx.TensorProto.BOOL))
    ]
    on = make.make_tensor_value_info("on", onnx.TensorProto.BOOL, [])
    body = make.make_graph([make.make_node("Identity", ["go"], ["on"])], "body", counted, [on])
    model.graph.node.append(make.make_node("Loop", ["", ""], [], body=body))
    with pytest.raises(
        InputError, match=r"'policy.onnx' holds a Loop or Scan, which may never end"
    ):
        OnnxPolicy(toy(), model.SerializeToString())


def test_weights_outside_of_the_graph_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksum covers a file of the folder in which a process happens to start."""
    import onnx

    model = onnx.load_model_from_string(toy_graph(toy()))
    matrix = model.graph.initializer[0]
    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(2 * matrix.raw_data)
    matrix.ClearField("raw_data")
    matrix.data_location = onnx.TensorProto.EXTERNAL
    place = matrix.external_data.add()
    place.key, place.value = "location", "weights"
    refusal("has weights in another file", OnnxPolicy, toy(), model.SerializeToString())
    monkeypatch.setattr("npmp.deploy.onnx_policy._OUTSIDE", b"written in another way")
    refusal(r"policy.onnx: .*External data", OnnxPolicy, toy(), model.SerializeToString())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gyro": np.zeros((100, 2))}, r"gyro is \(100, 2\), expected \(100, 3\)"),
        ({"gyro": np.full((100, 3), np.nan)}, "gyro must be finite numbers"),
        ({"target": np.full((100, 2), "0.1")}, "target must be finite numbers"),
        ({"command": np.zeros((100, 1), int)}, "command must be finite numbers"),
        ({"reset": np.arange(100) % 50 == 1}, "true at the first"),
        ({"reset": np.ones(100)}, "true or false"),
        ({"reset": np.arange(100) == 0}, "100 steps; 100 with 2 resets"),
        ({"reset": np.array(True)}, "true or false"),
        ({"more": np.zeros(1)}, "has the arrays"),
        (toy_golden(99)._asdict(), "99 steps"),
    ],
)
def test_a_golden_rollout_that_says_nothing_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    refusal(said, write_toy(tmp_path, golden=changes).golden)
