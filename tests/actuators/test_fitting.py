"""Known servos are recovered; the same seed gives the same model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp.actuators.evaluation import evaluate
from npmp.actuators.fitting import FitConfig, fit, inputs_of, static_law
from npmp.actuators.models import MLP, PD, ActuatorNetConfig, Hybrid, PDParameters
from tests.actuators.servos import RATE, log_of, servo, swung

SHORT = FitConfig(net=ActuatorNetConfig(width=8, lags=(0, 2)), updates=30, batch=32, unroll=4)


def test_the_best_constant_gains_are_found() -> None:
    """Without delay, lag and friction a servo is its gains."""
    a, b, c = static_law(log_of(servo(PDParameters(40.0, 1.5, 0.3))))
    assert (a, b, c) == (
        pytest.approx(40.0, rel=1e-4),
        pytest.approx(1.5, rel=1e-4),
        pytest.approx(0.3, rel=1e-3),
    )


def test_delay_lag_friction_and_gains_of_a_servo_are_recovered() -> None:
    true = PDParameters(40.0, 1.5, 0.2, lag_s=0.012, coulomb=0.3, stiction=0.2, stribeck=0.5)
    model = fit("pd", log_of(servo(true, 3, noise=0.02), servo(true, 3, seed=5, noise=0.02)))
    assert isinstance(model, PD) and int(model.delay) == 3
    found = model.parameters_of
    assert found.stiffness == pytest.approx(40.0, rel=0.02) and found.damping == pytest.approx(
        1.5, rel=0.05
    )
    assert found.lag_s == pytest.approx(0.012, rel=0.05) and found.offset == pytest.approx(
        0.2, abs=0.02
    )
    sliding = found.coulomb + found.load * 1.0  # at small torques
    assert sliding == pytest.approx(0.3, abs=0.05)
    judged = evaluate(model, log_of(servo(true, 3, seed=9))).figures
    assert judged["rollout_rmse_nm"] < 0.06 < 0.5 < judged["baseline_rmse_nm"]


@pytest.mark.slow
def test_a_servo_is_recovered_from_how_it_swings_a_pendulum() -> None:
    """From commands and positions alone, friction that grows with the motor and is larger at rest,
    and the armature, which no torque tells. A motion that it never made comes out; the network,
    told the rotor's share of torques, leaves it as it is."""
    true = PDParameters(
        1.0,
        0.04,
        lag_s=0.01,
        coulomb=0.01,
        stribeck=0.3,
        load=0.3,
        load_at_rest=0.15,
        armature=0.003,
    )
    model = fit("hybrid", log_of(*(swung(true, size) for size in (1.2, -0.8, 0.4)), rate_hz=100.0))
    assert isinstance(model, Hybrid)
    found = model.parameters_of
    assert found.armature == model.armature == pytest.approx(0.003, rel=0.1)
    assert (found.stiffness, found.load) == (
        pytest.approx(1.0, rel=0.03),
        pytest.approx(0.3, abs=0.02),
    )
    assert found.load_at_rest == pytest.approx(0.15, abs=0.03)
    figures = evaluate(model, log_of(swung(true, 0.5), rate_hz=100.0)).figures
    judged = figures["position_mae_rad"]
    without = (
        swung(replace(true, load_at_rest=0.0), 0.5).others["position"]
        - swung(true, 0.5).others["position"]
    )
    assert judged < 0.002 < 0.005 < np.abs(without).mean()
    # the torque at the pendulum, which lacks what the rotor took
    assert figures["rollout_rmse_nm"] < 0.1 * figures["torque_std_nm"]


def test_of_several_searches_the_best_stays() -> None:
    """On what they were fitted to; the first of them is the one that there is otherwise."""
    true = PDParameters(
        1.0,
        0.04,
        lag_s=0.01,
        coulomb=0.02,
        stribeck=0.3,
        load=0.4,
        load_at_rest=0.2,
        armature=0.003,
    )
    log = log_of(swung(true, 1.0), rate_hz=100.0)
    one, two = (
        evaluate(fit("pd", log, FitConfig(searches=count)), log).figures for count in (1, 2)
    )
    assert two["position_mae_rad"] <= 1.05 * one["position_mae_rad"] < 0.01
    with pytest.raises(ValueError, match="searches"):
        FitConfig(searches=0)


def test_a_hybrid_adds_what_the_closed_form_leaves() -> None:
    """Of a torque T a part tanh(T) Nm is lost; what is added is the less the more it costs."""
    traces = [servo(PDParameters(40.0, 0.5), samples=600, seed=seed) for seed in (0, 3, 9)]
    *some, last = (replace(t, torque=t.torque - np.tanh(t.torque)) for t in traces)
    off = [
        evaluate(
            fit(kind, log_of(*some), FitConfig(updates=300, correction=cost)), log_of(last)
        ).figures["rmse_nm"]
        for kind, cost in (("hybrid", 0.0), ("hybrid", 1.0), ("pd", 0.0))
    ]
    assert off[0] < 0.5 * off[1] < off[1] < off[2]


def test_a_limit_that_falls_with_speed_is_recovered() -> None:
    true = PDParameters(60.0, 0.0, limit=2.5, limit_slope=0.4)
    model = fit("pd", log_of(servo(true), servo(true, seed=3)))
    assert isinstance(model, PD)
    found = model.parameters_of
    assert (found.limit, found.limit_slope) == (
        pytest.approx(2.5, rel=0.03),
        pytest.approx(0.4, rel=0.1),
    )


def test_the_closed_form_is_fitted_to_a_stretch_of_every_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two servos of stiffness 20 and 60: between them, not the first's."""
    monkeypatch.setattr("npmp.actuators.fitting.MOST_SAMPLES", 500)
    traces = [servo(PDParameters(stiff, 1.0), name=f"s{stiff:g}", seed=3) for stiff in (20.0, 60.0)]
    model = fit("pd", log_of(*traces))
    assert isinstance(model, PD) and model.parameters_of.stiffness == pytest.approx(40.0, rel=0.1)


def test_constant_gains_without_a_lag_are_recovered() -> None:
    trace = servo(PDParameters(1.0, 0.0), samples=400)
    model = fit("pd", log_of(replace(trace, torque=40 * trace.position_error - trace.velocity)))
    assert isinstance(model, PD) and int(model.delay) == 0
    found = model.parameters_of
    assert (found.stiffness, found.damping) == (
        pytest.approx(40.0, rel=1e-3),
        pytest.approx(1.0, rel=1e-3),
    )
    figures = evaluate(
        model, log_of(replace(trace, torque=40 * trace.position_error - trace.velocity))
    ).figures
    assert figures["rollout_rmse_nm"] < 1e-3 * figures["torque_std_nm"]


def test_a_log_of_constant_torques_is_refused() -> None:
    trace = servo(PDParameters(1.0, 0.0), samples=40)
    for kind in ("pd", "mlp"):
        with pytest.raises(InputError, match="its torque is 0 Nm all the time"):
            fit(kind, log_of(replace(trace, torque=np.zeros_like(trace.torque))), SHORT)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_networks_learn_what_constant_gains_cannot(kind: str) -> None:
    """A servo that answers 10 ms late through a lag of 20 ms. Of 0.7 Nm per A its current is the
    torque over 0.7, which convolutions find again."""
    true = PDParameters(40.0, 0.5, lag_s=0.02)
    *traces, last = (
        replace(trace, others={"current": trace.torque / np.float32(0.7)})
        for trace in (servo(true, 2, seed=seed) for seed in (0, 3, 9))
    )
    config = FitConfig(net=ActuatorNetConfig(width=16), updates=400, batch=64, unroll=8)
    judged = evaluate(fit(kind, log_of(*traces), config), log_of(last)).figures
    assert judged["rollout_rmse_nm"] < 0.5 * judged["baseline_rmse_nm"]
    assert ("current_rmse_a" in judged) is (kind == "conv")
    if kind == "conv":
        assert judged["baseline_current_rmse_a"] == pytest.approx(
            judged["baseline_rmse_nm"] / 0.7, rel=1e-3
        )
        assert judged["current_rmse_a"] < 0.3 * judged["baseline_current_rmse_a"]
        assert judged["rollout_current_rmse_a"] < 0.5 * judged["baseline_current_rmse_a"]
        assert judged["actuators"]["one"]["current_std_a"] == pytest.approx(
            judged["torque_std_nm"] / 0.7, rel=1e-3
        )


@pytest.mark.parametrize("kind", ["mlp", "conv", "vae", "pd", "hybrid"])
def test_a_seed_gives_one_model(kind: str) -> None:
    log = log_of(
        *(servo(PDParameters(stiff, 1.0), name=f"s{stiff}", samples=300) for stiff in (20.0, 40.0))
    )
    first, again, other = (fit(kind, log, SHORT, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert kind == "pd" or any(not torch.equal(first[name], other[name]) for name in first)


def test_gains_change_without_new_data() -> None:
    """Fitted at kp 20 and 40, a model tells torques at 80: its reference does."""
    traces = [
        replace(
            servo(PDParameters(kp, 1.0, lag_s=0.01), name="one", seed=i), kp=kp, kd=0.0, limit=1e3
        )
        for i, kp in enumerate((20.0, 40.0, 80.0))
    ]
    model = fit("pd", log_of(*traces[:2]))
    assert model.contract.gains and model.contract.kp in (20.0, 40.0)
    assert isinstance(model, PD) and model.parameters_of.stiffness == pytest.approx(1.0, rel=0.01)
    figures = evaluate(model, log_of(traces[2])).figures
    assert figures["rollout_rmse_nm"] < 0.02 * figures["baseline_rmse_nm"]
    with pytest.raises(InputError, match="motion_0, one does not tell kp"):
        inputs_of(replace(traces[0], kp=math.nan), model.contract)


def test_a_vae_tells_actuators_apart_and_its_samples_spread_as_they_do() -> None:
    """Six servos of stiffness 20 to 70; another of 45 lies among them, one of 300 does not."""
    stiff = (20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
    traces = [
        servo(PDParameters(k, 1.0), name=f"k{k:g}", samples=500, seed=i)
        for i, k in enumerate(stiff)
    ]
    config = FitConfig(
        net=ActuatorNetConfig(width=16, lags=(0,), latent_dim=1), updates=1500, batch=128
    )
    model = fit("vae", log_of(*traces), config)
    assert isinstance(model, MLP) and model.codes is not None
    assert abs(np.corrcoef(model.codes[:, 0, 0].detach().numpy(), stiff)[0, 1]) > 0.9
    others = [
        servo(PDParameters(k, 1.0), name=name, samples=500, seed=9)
        for k, name in ((45.0, "in"), (300.0, "out"))
    ]
    judged = evaluate(model, log_of(*traces, *others)).figures["latents"]
    likely = judged["nats_per_sample"]
    known = [likely[f"k{k:g}"] for k in stiff]
    assert judged["told_apart"] > 0.6
    assert likely["in"] > min(known) - 0.5 and likely["out"] < min(known) - 5


def test_what_cannot_be_fitted_is_refused() -> None:
    log = log_of(servo(PDParameters(20.0, 1.0), samples=40))
    with pytest.raises(InputError, match="a vae tells actuators apart; this log has one, one"):
        fit("vae", log)
    with pytest.raises(InputError, match="no recording is as long as an unroll of 200 samples"):
        fit("conv", log, replace(SHORT, unroll=200))
    with pytest.raises(InputError, match="lower learning_rate=1e"):
        fit("mlp", log, replace(SHORT, learning_rate=1e30))
    with pytest.raises(InputError, match="has no voltage, which this model takes"):
        fit("mlp", log, SHORT, channels=["voltage"])
    with pytest.raises(InputError, match="no channel 'current'; there are: temperature, voltage"):
        fit("mlp", log, SHORT, channels=["current"])
    with pytest.raises(InputError, match="channels= is for mlp, conv and vae"):
        fit("pd", log, SHORT, channels=["temperature"])
    with pytest.raises(InputError, match=f"of {RATE:g} Hz, 50 Hz are asked for"):
        evaluate(fit("mlp", log, SHORT), replace(log, rate_hz=50.0))
