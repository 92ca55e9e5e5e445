"""Public recordings as logs: made-up ones by hand, real ones where they lie."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from npmp.actuators import ActuatorLog, HeldOut
from npmp.actuators.actuator_fit import FitConfig, fit, static_law
from npmp.actuators.evaluation import evaluate
from npmp.actuators.importers import (
    GRAVITY,
    STS3215_STALL_NM,
    anydrive,
    anydrive_network,
    bam,
    causal_velocity,
    hwangbo,
    sage,
    smoothed,
)
from tests.refusals import refusal


def saved_arm(path: Path, joints: list[str], **columns: np.ndarray) -> Path:
    """A file of an SO-101 at 50 Hz, one run."""
    time = np.arange(50) / 50
    run = columns | {"time_s": time, "command_time_s": time}
    np.savez(path / "s.npz", joints=np.array(joints), **{f"run/{k}": v for k, v in run.items()})
    return path / "s.npz"


def test_a_pendulum_s_torque_follows_from_its_motion(tmp_path: Path) -> None:
    """q = 0.5 sin(2 t): m l^2 a + m g l sin q with a = -4 q."""
    time = np.arange(0, 4, 0.005)
    q = 0.5 * np.sin(2 * time)
    load = np.where(time < 2.0, 65535.0, 0.0)  # -1, then off
    columns = {"timestamp": time, "position": q, "goal_position": q + 0.1, "load": load}
    columns |= {"input_volts": 7 + 0 * q, "temp": 30 + 0 * q}
    np.savez(tmp_path / "b.npz", **{f"00/{k}": v for k, v in columns.items()})
    about = {"log": "00", "trajectory": "sine", "mass": 0.5, "length": 0.1, "kp": 100}
    (tmp_path / "b.json").write_text(json.dumps([about, about | {"log": "07"}]))
    log = bam(tmp_path / "b.npz")
    (result,) = log.traces
    assert log.rate_hz == 200.0 and len(result) == pytest.approx(400, abs=1)
    q = q[: len(result)]
    torque = 0.5 * 0.01 * -4 * q + 0.5 * GRAVITY * 0.1 * np.sin(q)
    inside = slice(20, -20)  # no window over the ends
    np.testing.assert_allclose(result.torque[inside], torque[inside], atol=1e-4)
    # 100 / 256 of 4096 counts in a turn, of 885
    assert (
        result.kp == pytest.approx(100 / 256 * 4096 / (2 * math.pi) / 885) and result.limit == 1.0
    )
    assert (result.inertia, result.gravity) == pytest.approx((0.005, 0.5 * GRAVITY * 0.1))
    np.testing.assert_allclose(result.position_error, 0.1, atol=1e-6)
    (tmp_path / "b.json").write_text("[{}]")
    refusal("mass, length, kp", bam, tmp_path / "b.npz")


def test_a_current_s_magnitude_gets_the_error_s_sign(tmp_path: Path) -> None:
    both = np.tile([0.2, -0.3], (50, 1))
    torque = np.abs(both) * [1, 20]
    path = saved_arm(
        tmp_path, ["A", "B"], command=both, position=0 * both, velocity=0 * both, torque=torque
    )
    log = sage(path)
    assert log.rate_hz == 50.0 and log.actuators == ["A", "B"]
    np.testing.assert_allclose(log.traces[0].torque, 0.2)
    np.testing.assert_allclose(log.traces[1].torque, -STS3215_STALL_NM)
    # 0.2 and 6 Nm by 0.022814 Nm per count of 6.5 mA; a current is not cut
    np.testing.assert_allclose(log.traces[0].others["current"], 0.05698, atol=1e-5)
    np.testing.assert_allclose(log.traces[1].others["current"], -1.70948, atol=1e-5)
    refusal("rate_hz", hwangbo, path)


def test_a_current_answers_a_command_a_moment_later(tmp_path: Path) -> None:
    """The command jumps from 0.2 to -0.2 at moment 5, of which the servo knows nothing yet as it is
    read."""
    command, zero = np.where(np.arange(50) < 5, 0.2, -0.2)[:, None], np.zeros((50, 1))
    path = saved_arm(
        tmp_path, ["A"], command=command, position=zero, velocity=zero, torque=0.1 + zero
    )
    (result,) = sage(path).traces
    np.testing.assert_allclose(result.position_error[3:8], [0.2, 0.2, 0.2, -0.2, -0.2], atol=1e-6)
    np.testing.assert_allclose(result.torque[3:8], [0.1, 0.1, 0.1, -0.1, -0.1], atol=1e-6)


def test_the_jaw_s_shares_become_rad(tmp_path: Path) -> None:
    """1,523 counts of the encoder from shut to open, 4,096 a turn; velocities are rad/s already."""
    both = np.full((50, 2), 0.5)
    path = saved_arm(
        tmp_path, ["Elbow", "Jaw"], command=2 * both, position=both, velocity=both, torque=both
    )
    elbow, jaw = sage(path).traces
    half = math.pi * 1523 / 4096
    np.testing.assert_allclose([elbow.position_error, elbow.others["position"]], 0.5, rtol=1e-6)
    np.testing.assert_allclose([jaw.position_error, jaw.others["position"]], half, rtol=1e-6)
    for same in (elbow.velocity, jaw.velocity, elbow.torque, jaw.torque):
        np.testing.assert_allclose(same, 0.5, rtol=1e-6)


def test_a_network_s_answers_become_a_log(tmp_path: Path) -> None:
    """Without memory (no recurrent weights, gates open or shut) a network can be a spring and a
    damper."""
    weights, bias = np.zeros((8, 2), np.float32), np.zeros(8, np.float32)
    # of in, forget, cell, out: each cell holds one input, small
    weights[4:6] = np.eye(2)
    gates = np.repeat(np.array([20.0, -20.0, 0.0, 20.0], np.float32), 2)
    layer = {"weight_ih": weights, "weight_hh": 0 * weights, "bias_ih": gates, "bias_hh": bias}
    arrays = {f"lstm.{name}_l{k}": values for k in (0, 1) for name, values in layer.items()}
    arrays |= {
        "linear.weight": np.array([[400.0, -50.0]], np.float32),
        "linear.bias": np.zeros(1, np.float32),
        "in_scale": np.array([[[0.01, 0.002]]], np.float32),
        "out_scale": np.array([20.0], np.float32),
    }
    np.savez(tmp_path / "a.npz", **arrays, joints=np.array(["HAA"]), response=np.zeros(3, complex))
    log = anydrive(tmp_path / "a.npz")
    assert log.rate_hz == 200.0 and log.actuators == ["anydrive"] and log.licence == "BSD-3-Clause"
    assert len(log.traces) == 16 and all(len(trace) == 6000 for trace in log.traces)
    for trace in log.traces:  # kp = 20 400 0.01 = 80, kd = 20 50 0.002 = 2
        spring = 80.0 * trace.position_error - 2.0 * trace.velocity
        np.testing.assert_allclose(trace.torque, spring, atol=0.01 * np.abs(spring).max())
        assert 0.01 < trace.position_error.std() < 1.0 and trace.velocity.std() > 0.5
    for name, shape in (("bias_ih_l0", (3,)), ("weight_hh_l0", (3,)), ("weight_hh_l0", (0, 0))):
        np.savez(tmp_path / "b.npz", **arrays | {f"lstm.{name}": np.zeros(shape, np.float32)})
        refusal("ANYdrive", anydrive, tmp_path / "b.npz")


def test_every_joint_of_the_arm_moves_as_fast_as_it_says(shared: Path) -> None:
    """Positions rise by what the velocities of the moment after say, of all joints alike."""
    log = sage(shared / "actuators" / "sage_so101.npz")
    for trace in (result for result in log.traces if result.recording == "frequency_sweep"):
        rise, message = np.gradient(trace.others["position"])[:-1] * log.rate_hz, trace.velocity[1:]
        assert (rise @ message) / (rise @ rise) == pytest.approx(1.0, abs=0.06), trace.actuator


def test_the_anydrive_answers_as_its_publishers_probed(shared: Path) -> None:
    """From rest, 0.1 rad off; on its way with 1 rad/s it is slowed down."""
    path = shared / "actuators" / "anydrive_v3_lstm.npz"
    network, other = anydrive_network(path), anydrive_network(path)
    torques = [network(np.array([0.1]), np.zeros(1))[0] for _ in range(4)]
    assert torques == pytest.approx([5.2, 7.8, 8.8, 9.1], abs=0.05)
    assert [other(np.zeros(1), np.ones(1))[0] for _ in range(20)][-1] < -2.0
    stiffness, damping = static_law(anydrive(path))[:2]
    assert (stiffness, damping) == (pytest.approx(64.0, abs=2.0), pytest.approx(3.8, abs=0.3))


def test_a_cubic_s_derivatives_are_exact() -> None:
    t = np.arange(50) / 100
    for result, true in zip(smoothed(t**3, 100.0), (t**3, 3 * t**2, 6 * t), strict=True):
        np.testing.assert_allclose(result, true, atol=1e-9)


def test_a_pendulum_s_velocity_is_of_positions_before() -> None:
    """t^2 rises by 2 t - 0.08 per second over the 80 ms before t; later values do not count."""
    t = np.arange(50) / 100
    result = causal_velocity(t**2, 100.0)
    np.testing.assert_allclose(result[8:], (2 * t - 0.08)[8:], atol=1e-12)
    np.testing.assert_allclose(result[:9], t[:9], atol=1e-12)  # (t^2 - 0) / t
    changed = causal_velocity(np.where(t > 0.3, 9.0, t**2), 100.0)
    np.testing.assert_array_equal(changed[t <= 0.3], result[t <= 0.3])


def knee_of(shared: Path) -> tuple[ActuatorLog, ActuatorLog]:
    """What is fitted to, and the last 30 %."""
    path = shared / "actuators" / "hwangbo_anymal_knee.npz"
    if not path.is_file():
        pytest.skip("no log of the knee")
    first, last = hwangbo(path).split(HeldOut(0.3))
    assert last is not None
    return first, last


def test_the_knee_of_an_anymal_is_learned(shared: Path) -> None:
    """The best constant gains come to 3.09 Nm; an MLP, even a briefly fitted one, to 0.37 to 0.43
    (seeds 0 to 2)."""
    first, last = knee_of(shared)
    figures = evaluate(fit("mlp", first, FitConfig(updates=800)), last).figures
    assert figures["baseline_rmse_nm"] == pytest.approx(3.09, abs=0.01)
    assert figures["rmse_nm"] < 0.5 and figures["rmse_nm"] == figures["rollout_rmse_nm"]


@pytest.mark.slow
def test_convolutions_on_their_own_torques_beat_the_closed_form_on_the_knee(shared: Path) -> None:
    """The closed form comes to 0.683 Nm; a short fit of convolutions to 0.34."""
    first, last = knee_of(shared)
    config = FitConfig(updates=1000, unroll=6, learning_rate=5e-3)
    figures = evaluate(fit("conv", first, config), last).figures
    assert figures["rmse_nm"] < figures["rollout_rmse_nm"] < 0.6 * 0.683
