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
from npmp.deploy import Bundle, Readings
from npmp.deploy.bundle import CONTRACT, GOLDEN, GRAPH, SCHEMA, VERSION, Policy, _sealed, replay
from npmp.deploy.runtime import RUNTIMES

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)

toys_path = Path(__file__).with_name("toys.py")
spec = importlib.util.spec_from_file_location("toys", toys_path)
assert spec is not None and spec.loader is not None
toys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toys)

ROOT = Path(__file__).resolve().parents[2]
STILL = Readings(toys.HOME, np.zeros(3), np.array([0.0, 0.0, 9.81]), np.array([0.0, 0.0, 1.0]))


@pytest.fixture
def bundle(tmp_path: Path) -> Any:
    return toys.write(tmp_path / "bundle")


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def resealed(folder: Path, **changes: Any) -> None:
    """bundle.json as someone would write it who knows how it is sealed."""
    content = json.loads((folder / CONTRACT).read_text())
    (folder / CONTRACT).write_bytes(
        _sealed({k: v for k, v in (content | changes).items() if k != "sha256"})
    )


# --- acting ---


def test_it_answers_with_memory_and_its_own_last_setpoint(bundle: Bundle, runtime: str) -> None:
    policy = bundle.policy(runtime)
    # at rest: (1 g, 0); then half of that and h_low = 1: (2.5, 1); then (1.25 + 3, 0.5 + 2)
    for action in ((1.0, 0.0), (2.5, 1.0), (4.25, 2.5)):
        np.testing.assert_allclose(policy.act(STILL, [0.0]) - toys.HOME, action, rtol=1e-6)
    policy.reset()
    moved = STILL._replace(joint_pos=toys.HOME + [0.25, 0.5], gyro=[0.125, 7.0, 7.0])
    np.testing.assert_allclose(
        policy.act(moved, [2.0]) - toys.HOME, (0.25 + 1.0 + 2.0, 0.5 + 0.125 + 2.0), rtol=1e-6
    )


def test_a_setpoint_that_was_not_its_own_is_seen(bundle: Bundle, runtime: str) -> None:
    policy = bundle.policy(runtime)
    policy.act(STILL, [0.0])
    np.testing.assert_allclose(
        policy.act(STILL, [0.0], setpoint=toys.HOME + [4.0, 2.0]) - toys.HOME, (4.0, 2.0)
    )


def test_the_same_bits_every_time(bundle: Bundle, runtime: str) -> None:
    rng = np.random.default_rng(0)
    rows = [Readings(rng.normal(size=2), *rng.normal(size=(3, 3))) for _ in range(50)]
    first, second = bundle.policy(runtime), bundle.policy(runtime)
    answers = [first.act(row, [0.3]) for row in rows]
    np.testing.assert_array_equal([second.act(row, [0.3]) for row in rows], answers)
    first.reset()
    np.testing.assert_array_equal([first.act(row, [0.3]) for row in rows], answers)


def test_arrays_of_any_kind_are_taken(bundle: Bundle, runtime: str) -> None:
    policy = bundle.policy(runtime)
    angles = np.array([0.25, 8.0, -0.5, 8.0])
    plain = policy.act(STILL._replace(joint_pos=angles[::2].copy()), [0.5])
    fixed = angles[::2].copy()
    fixed.flags.writeable = False
    # its dtype is another object
    sent = fixed.astype(np.dtype("f8", metadata={"of": "another process"}))
    kinds = [
        fixed,
        sent,
        angles[::2],
        fixed.astype(np.float32),
        fixed.astype(">f8"),
        fixed.tolist(),
    ]
    for joint_pos in kinds:
        policy.reset()
        np.testing.assert_array_equal(policy.act(STILL._replace(joint_pos=joint_pos), [0.5]), plain)


def test_a_task_without_a_command(runtime: str) -> None:
    described = toys.contract(command=[], command_unit=[], command_range=[])
    policy = Policy(described, toys.graph(described), runtime=runtime)
    np.testing.assert_allclose(policy.act(STILL, []) - toys.HOME, (1.0, 0.0), rtol=1e-6)
    with pytest.raises(ValueError, match="command must be 0 numbers"):
        policy.act(STILL, [0.0])


def test_an_answer_is_the_callers_own(bundle: Bundle, runtime: str) -> None:
    """A controller may limit it in place: what the policy remembers of it stays."""
    policy, other = bundle.policy(runtime), bundle.policy(runtime)
    answer = policy.act(STILL, [0.0])
    np.testing.assert_array_equal(answer, other.act(STILL, [0.0]))
    answer += 100.0
    np.testing.assert_array_equal(policy.act(STILL, [0.0]), other.act(STILL, [0.0]))


@pytest.mark.parametrize(
    ("readings", "command", "said"),
    [
        (STILL._replace(joint_pos=np.zeros(3)), [0.0], "joint_pos must be 2 numbers"),
        (STILL._replace(joint_pos=0.5), [0.0], "joint_pos must be 2 numbers"),
        (STILL._replace(joint_pos=[0.5]), [0.0], "joint_pos must be 2 numbers"),
        (STILL._replace(gyro=np.zeros((1, 3))), [0.0], "gyro must be 3 numbers"),
        (STILL._replace(accelerometer=np.zeros(2)), [0.0], "accelerometer must be 3 numbers"),
        (STILL._replace(up=np.zeros(4)), [0.0], "up must be 3 numbers"),
        (STILL, [0.0, 0.0], "command must be 1 numbers"),
        (STILL, [np.nan], "senses or is told"),
        (STILL._replace(up=[0.0, np.nan, 1.0]), [0.0], "senses or is told"),
        (STILL._replace(joint_pos=[np.inf, 0.0]), [0.0], "senses or is told"),
        (STILL._replace(gyro=[-np.inf, np.inf, 0.0]), [0.0], "senses or is told"),
    ],
)
def test_what_it_is_not_made_for_is_refused_and_not_remembered(
    bundle: Bundle, runtime: str, readings: Readings, command: list[float], said: str
) -> None:
    policy = bundle.policy(runtime)
    policy.act(STILL, [0.0])
    with pytest.raises(ValueError, match=said):
        policy.act(readings, command)
    np.testing.assert_allclose(policy.act(STILL, [0.0]) - toys.HOME, (2.5, 1.0), rtol=1e-6)


@pytest.mark.parametrize("output", ["action", "h_low_next"])
def test_an_answer_that_is_not_finite_is_not_remembered(runtime: str, output: str) -> None:
    """The toy's action, or what it remembers, times command over command: no number where 0 is
    asked for."""
    import onnx

    model = onnx.load_model_from_string(toys.graph(toys.contract()))
    last = next(node for node in model.graph.node if node.output[0] == output)
    last.output[0] = "plain"
    for kind, inputs, made in (
        ("Div", ("command", "command"), "share"),
        ("Mul", ("plain", "share"), output),
    ):
        model.graph.node.append(onnx.helper.make_node(kind, inputs, [made]))
    policy = Policy(toys.contract(), model.SerializeToString(), runtime=runtime)
    np.testing.assert_allclose(policy.act(STILL, [1.0]) - toys.HOME, (2.0, 1.0), rtol=1e-6)
    with pytest.raises(ValueError, match="the policy's answer is not finite"):
        policy.act(STILL, [0.0])
    np.testing.assert_allclose(policy.act(STILL, [1.0]) - toys.HOME, (4.0, 2.5), rtol=1e-6)
    policy.reset()
    again = np.array([policy.act(STILL, [1.0]), policy.act(STILL, [1.0])])
    np.testing.assert_allclose(again - toys.HOME, [(2.0, 1.0), (4.0, 2.5)], rtol=1e-6)


def test_its_golden_recording(bundle: Bundle, runtime: str) -> None:
    result = replay(bundle.policy(runtime), bundle.golden())
    assert result.difference < 1e-6 and result.on_its_own < 1e-6 and len(result.seconds) == 100
    off = bundle.golden()._replace(target=bundle.golden().target + np.array([0.0, 0.25]))
    # at the first step
    assert replay(bundle.policy(), off).difference == pytest.approx(0.25, abs=1e-6)


def test_nothing_heavy_is_imported(bundle: Bundle) -> None:
    check = (
        "import sys\nfrom npmp.deploy import Bundle, Readings\n"
        f"policy = Bundle.read({str(bundle.folder)!r}).policy()\n"
        "policy.act(Readings([0, 0], [0] * 3, [0] * 3, [0, 0, 1]), [0])\n"
        "print(sorted({'torch', 'mujoco', 'hydra', 'matplotlib', 'onnx', 'scipy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"


def test_without_its_runtime_it_says_what_to_install(
    bundle: Bundle, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "npmp.deploy.compiled", raising=False)
    monkeypatch.setitem(sys.modules, runtime, None)
    with pytest.raises(InputError, match=rf"needs {runtime}.*pip install 'npmp\[deploy\]'"):
        bundle.policy(runtime)
    with pytest.raises(InputError, match="no runtime 'tvm'; there are onnxruntime, numba"):
        bundle.policy("tvm")


# --- files ---


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    exact = [1.0 / 3.0, np.nextafter(1.0, 2.0)]
    assert toys.write(tmp_path, home_pose=exact).contract.home_pose == exact


@pytest.mark.parametrize("name", [CONTRACT, GRAPH, GOLDEN])
def test_one_flipped_bit_is_refused(bundle: Bundle, name: str) -> None:
    path = bundle.folder / name
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError):
            Bundle.read(bundle.folder)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError):
        Bundle.read(bundle.folder)
    path.write_bytes(whole)
    Bundle.read(bundle.folder)


@pytest.mark.parametrize("name", [CONTRACT, GRAPH, GOLDEN])
def test_a_missing_file_is_named(bundle: Bundle, name: str) -> None:
    (bundle.folder / name).unlink()
    with pytest.raises(InputError, match=name):
        Bundle.read(bundle.folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "npmp-policy"}, SCHEMA),
        ({"version": VERSION + 1}, f"has version {VERSION + 1}; this npmp reads version {VERSION}"),
        ({"kp": [10.0]}, "other lengths of kp"),
        ({"kp": [10.0, "high"]}, "kp"),
        ({"joint_range": [[1.0, -1.0], [0.0, 1.0]]}, "pairs"),
        ({"kp": [10.0, 0.0]}, "kp must be above 0"),
        ({"kd": [0.1, -0.2]}, "kd must be at least 0"),
        ({"torque_limit": [5.0, -5.0]}, "torque_limit must be above 0"),
        ({"velocity_limit": [0.0, 10.0]}, "velocity_limit must be above 0"),
        ({"joint_names": ["hip", "hip"]}, "names a joint twice"),
        ({"home_pose": [0.1, -2.1]}, "home_pose lies outside"),
        ({"home_pose": [1.1, -0.2]}, "home_pose lies outside"),
        ({"imu_position": []}, "imu_position needs three numbers"),
        ({"control_rate_hz": 0.01}, "control_rate_hz"),
        ({"physics_rate_hz": 1e9}, "physics_rate_hz"),
        ({"hold": "third_order"}, "hold"),
        ({"command": []}, "command_unit"),
        ({"observation": []}, "observation"),
        ({"besides": ["height_of_tide_m"]}, "besides the command"),
        ({"besides": ["clock_sin", "clock_cos"]}, "besides the command"),
        ({"clock_s": 0.5}, "besides the command"),
        ({"besides": ["clock_sin", "clock_cos"], "clock_s": 0.0}, "besides the command"),
        ({"besides": ["ground_a_m", "ground_b_m"], "clock_s": -1.0}, "besides the command"),
        (
            {"besides": ["ground_a_m", "clock_sin", "clock_cos"], "clock_s": 0.5},
            "besides the command",
        ),
        ({"files": {GRAPH: "0"}}, "has the files"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_contract_that_cannot_be_is_refused(
    bundle: Bundle, changes: dict[str, Any], said: str
) -> None:
    resealed(bundle.folder, **changes)
    with pytest.raises(InputError, match=said):
        Bundle.read(bundle.folder)


def test_other_checksums_may_be_zeros(tmp_path: Path) -> None:
    assert toys.write(tmp_path, policy_sha256="0" * 64).contract.policy_sha256 == "0" * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"robot": "another", "joint_names": ["a", "b"]},
        {"joint_names": ["knee", "hip"]},  # another order
        {"kp": [10.0, 20.000000001]},
        {"home_pose": [0.1, -0.3]},
    ],
)
def test_metadata_of_something_else_does_not_pass_with_a_new_seal(
    bundle: Bundle, runtime: str, changes: dict[str, Any]
) -> None:
    resealed(bundle.folder, **changes)
    with pytest.raises(InputError, match="contracts differ"):
        Bundle.read(bundle.folder).policy(runtime)


def test_a_graph_of_other_widths_is_refused(bundle: Bundle, runtime: str) -> None:
    wider = replace(bundle.contract, memory={**bundle.contract.memory, "z": 2})
    with pytest.raises(InputError, match="does not fit its bundle"):
        Policy(wider, toys.graph(toys.contract()), runtime=runtime)
    with pytest.raises(InputError):
        Policy(bundle.contract, b"no graph", runtime=runtime)


def test_weights_outside_of_the_graph_are_refused(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksum covers a file of the folder in which somebody happens to start."""
    import onnx

    model = onnx.load_model_from_string(toys.graph(toys.contract()))
    matrix = model.graph.initializer[0]
    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(2 * matrix.raw_data)
    matrix.ClearField("raw_data")
    matrix.data_location = onnx.TensorProto.EXTERNAL
    place = matrix.external_data.add()
    place.key, place.value = "location", "weights"
    with pytest.raises(InputError, match="has weights in another file"):
        Policy(toys.contract(), model.SerializeToString(), runtime=runtime)
    monkeypatch.setattr("npmp.deploy.runtime._OUTSIDE", b"written in another way")
    with pytest.raises(InputError, match=r"policy.onnx: .*(weights in another file|External data)"):
        Policy(toys.contract(), model.SerializeToString(), runtime=runtime)


def test_a_recording_of_other_widths_is_refused(tmp_path: Path) -> None:
    described = toys.contract()
    Bundle.write(
        tmp_path,
        described,
        toys.graph(described),
        toys.golden()._replace(gyro=np.zeros((100, 2)))._asdict(),
    )
    with pytest.raises(InputError, match="other shapes"):
        Bundle.read(tmp_path).golden()
    assert asdict(Bundle.read(tmp_path).contract)["robot"] == "toy"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gyro": np.full((100, 3), np.nan)}, "gyro must be finite numbers"),
        ({"target": np.full((100, 2), "0.1")}, "target must be finite numbers"),
        ({"command": np.zeros((100, 1), int)}, "command must be finite numbers"),
        ({"reset": np.arange(100) % 50 == 1}, "true at the first"),
        ({"reset": np.ones(100)}, "true or false"),
        ({"reset": np.arange(100) == 0}, "100 steps; 100 with 2 resets"),
        ({"reset": np.array(True)}, "other shapes"),
        ({"more": np.zeros(1)}, "has the arrays"),
    ],
)
def test_a_recording_that_says_nothing_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    described = toys.contract()
    Bundle.write(tmp_path, described, toys.graph(described), toys.golden()._asdict() | changes)
    with pytest.raises(InputError, match=said):
        Bundle.read(tmp_path).golden()
    Bundle.write(tmp_path, described, toys.graph(described), toys.golden(99)._asdict())
    with pytest.raises(InputError, match="99 steps"):
        Bundle.read(tmp_path).golden()
