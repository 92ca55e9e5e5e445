"""Parameters that are put into simulations come out again, with errors that say how well they are
known."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from scipy.signal import lfilter

from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.estimation import (
    IdentificationConfig,
    Identified,
    ParameterPrior,
    identify,
)
from npmp.actuators.identification.preset import summary
from npmp.actuators.identification.stand import (
    ARMATURE,
    BIAS,
    DAMPING,
    DELAY,
    FRICTION,
    KD,
    KP,
    Floats,
    Stand,
)
from npmp.actuators.importers import GRAVITY, bam
from tests.actuators.identification.arms import arm, log_of, sweep

# armature, damping, friction_loss, delay_s, bias, kp, kd
HIDDEN = (0.08, 0.7, 0.3, 0.033, -0.04, 44.0, 1.0)
QUICK = IdentificationConfig(iterations=12)


def logged(stand: Stand, hidden: Floats, seed: int, *, torque: bool = False) -> StandLog:
    """A sweep with encoder noise of 0.5 mrad, and torque noise of 0.05 Nm."""
    rng, command = np.random.default_rng(seed), sweep()
    motion = stand.run(hidden[None], command, command[0], torque=torque)
    position = motion.position[0] + hidden[:, BIAS] + rng.normal(0.0, 5e-4, command.shape)
    if motion.torque is None:
        return log_of(stand, command, position)
    torques = motion.torque[0] + rng.normal(0.0, 0.05, command.shape)
    return log_of(stand, command, position, torques)


@pytest.fixture(scope="module")
def hidden() -> Floats:
    return np.array([HIDDEN])


def doubts(found: Identified) -> str:
    return " ".join(summary(found)["not_told_apart"])


def test_all_but_the_share_of_damping_of_a_loaded_joint_is_identified(hidden: Floats) -> None:
    """Four repeats: each of six parameters within three errors, and the errors as large as the
    misses are."""
    stand = arm()
    result = [identify(stand, logged(stand, hidden, seed), QUICK) for seed in range(4)]
    z = np.array([(f.estimate - hidden)[0, :6] / f.error[0, :6] for f in result])
    assert np.abs(z).max() < 3.5 and 0.5 < np.sqrt(np.square(z).mean()) < 1.5
    first = result[0]
    assert first.rms_after[0] == pytest.approx(5e-4, rel=0.1)
    assert first.rms_before[0] > 20 * first.rms_after[0]
    assert first.error[0, KP] < 0.44 and first.error[0, DELAY] < 2e-4
    assert first.error[0, KD] == 0.0 and "only on their sum" in doubts(first)
    assert first.condition[0] < 100 and first.correlation_time[0] < 1.5


def test_without_weight_only_ratios_are_known_and_it_says_so(hidden: Floats) -> None:
    """About the vertical, of a link that weighs nothing, everything may be twice as large: the
    prior of kp decides, and armature / kp is known all the same."""
    stand = arm("turning", mass=1e-6)
    result = identify(stand, logged(stand, hidden, 0), QUICK)
    # what was known before, less what jumps feign
    assert 0.5 * 0.12 * 40.0 < result.error[0, KP] < 0.121 * 40.0
    # of a bias that does nothing only rounding shows: that is no jump
    assert result.error[0, DELAY] < 3e-5
    assert result.error[0, BIAS] == pytest.approx(0.03, rel=0.01)
    assert abs(result.estimate[0, BIAS]) < 1e-6
    assert result.correlation(0)[KP, ARMATURE] > 0.99
    ratio = summary(result)["joints"]["a"]["armature_over_kp"]
    assert abs(ratio["estimate"] - 0.08 / 44.0) < 3.0 * ratio["standard_error"] < 0.03 * 0.08 / 44.0
    assert "only relative to kp" in doubts(result) and "bias" in doubts(result)


def test_where_residuals_resemble_themselves_the_prior_keeps_its_weight(hidden: Floats) -> None:
    """A light arm, encoders whose error of 3 mrad drifts (AR(1), 0.9 from a sample to the next, so
    19 samples long): armature and kp are off by as much as their errors say."""
    stand, command, scale = arm(mass=0.02), sweep(), [ARMATURE, KP]
    true = stand.run(hidden[None], command, command[0]).position[0] + hidden[:, BIAS]
    z = []
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(size=true.shape)
        drift = lfilter([np.sqrt(1.0 - 0.9**2)], [1.0, -0.9], noise, 0)
        result = identify(stand, log_of(stand, command, true + 3e-3 * drift), QUICK)
        z.append((result.estimate - hidden)[0, scale] / result.error[0, scale])
    assert 0.3 < np.sqrt(np.square(z).mean()) < 1.5


def test_torques_tell_the_drive_from_the_joint(hidden: Floats) -> None:
    stand = arm("turning", mass=1e-6)
    result = identify(stand, logged(stand, hidden, 0, torque=True), QUICK)
    known = [ARMATURE, DAMPING, FRICTION, DELAY, KP, KD]
    assert (np.abs(result.estimate - hidden)[0, known] < 3.5 * result.error[0, known]).all()
    assert result.error[0, KP] < 0.02 * 44.0 and 0.0 < result.error[0, KD] < 0.1
    assert "on their sum" not in doubts(result)


def test_a_drive_that_damps_less_than_the_model_s_has_the_rest(hidden: Floats) -> None:
    """Of 0.6 Nm s/rad in all none is left for the joint: kd is 0.6 then, not the model's 1."""
    less = hidden.copy()
    less[0, DAMPING], less[0, KD] = 0.1, 0.5
    stand = arm()
    result = identify(stand, logged(stand, less, 0), QUICK)
    assert result.estimate[0, DAMPING] == 0.0
    assert result.estimate[0, KD] == pytest.approx(0.6, abs=4 * result.error[0, DAMPING])


def test_drives_at_their_limit_are_named(hidden: Floats) -> None:
    """Of 200 Nm the sweep needs none; of 3 Nm, the weight's own, it takes all."""
    strong, weak, once = arm(), arm(), IdentificationConfig(iterations=1)
    weak.torque_limit[:] = 3.0
    log = logged(strong, hidden, 0)
    assert identify(strong, log, once).saturated[0] == 0.0
    result = identify(weak, log, once)
    assert result.saturated[0] > 0.1 and "torque limit" in doubts(result)


# --- a real servo


def pendulum(shared: Path, kp: int) -> tuple[Stand, list[JointRecording]]:
    """A Dynamixel XL330 with a mass on a light arm (Rhoban's logs), at the firmware's gain kp.

    By its data sheet: 0.52 Nm at 5 V, 10.8 rad/s without load; for each of 4096 steps of error its
    firmware gives kp / 128 of 885 parts of the voltage. The lifted mass is let go after 2 s, which
    no command shows.
    """
    rate, volts, per_volt = 188.0, 7.4, 0.52 / 5.0
    most = volts * per_volt
    stiffness = kp / 128 * 4096 / (2 * np.pi) / 885 * most
    log = bam(shared / "actuators" / "bam_xl330.npz")
    traces = [trace for trace in log.traces if trace.recording.endswith(f"_kp{kp}")]
    length = GRAVITY * traces[0].inertia / traces[0].gravity
    model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option timestep="{0.5 / rate}" integrator="implicitfast"/>
      <worldbody>
        <body>
          <joint name="servo" axis="0 1 0" damping="{0.52 / 10.8}"/>
          <geom type="sphere" size="0.001" mass="{traces[0].inertia / length**2}"
            pos="0 0 -{length}"/>
        </body>
      </worldbody>
      <actuator>
        <position name="servo" joint="servo" kp="{stiffness}" forcerange="-{most} {most}"/>
      </actuator>
    </mujoco>""")
    recordings = []
    for trace in traces:
        end = round(2.0 * rate) if "lift_and_drop" in trace.recording else len(trace)
        position = trace.others["position"][:end, None].astype(np.float64)
        command = position + trace.position_error[:end, None]
        recordings.append(JointRecording(trace.recording, command, position))
    return Stand(model, ["servo"], 2), recordings


def test_a_real_servo_is_predicted_better_than_by_its_data_sheet(shared: Path) -> None:
    """Three motions of the XL330 to identify it, the fourth to predict in open loop."""
    stand, recordings = pendulum(shared, 100)
    *known, other = sorted(recordings, key=lambda recording: "up_and_down" in recording.name)
    settings = IdentificationConfig(prior=ParameterPrior(kp=1.0), settle_s=0.3, iterations=8)
    result = identify(stand, StandLog(188.0, stand.joints, tuple(known)), settings)
    both = np.stack((result.nominal, result.estimate))
    read = stand.run(both, other.command, other.position[0]).position + both[:, None, :, BIAS]
    before, after = np.sqrt(np.square(read - other.position).mean((1, 2)))
    assert "up_and_down" in other.name and after < 0.06 and after < 0.25 * before
    # what the model lacks: the errors are widened for it
    assert result.correlation_time[0] > 20
    assert 0.1 < result.estimate[0, KP] < 0.3 and result.estimate[0, FRICTION] > 0.01
