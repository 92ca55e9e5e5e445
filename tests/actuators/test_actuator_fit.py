"""Known servos are recovered; the same seed gives the same model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp.actuators import Trace
from npmp.actuators.actuator_fit import FitConfig, fit, static_law
from npmp.actuators.evaluation import evaluate
from npmp.actuators.models import MLP, PD, ActuatorNetConfig, Hybrid, inputs_of
from npmp.actuators.servo import PDParameters
from tests.actuators.servos import log_of, servo, swung
from tests.refusals import refusal

SWUNG = PDParameters(
    1.0, 0.04, 0.0, 0.01, coulomb=0.02, stribeck=0.3, load=0.4, load_at_rest=0.2, armature=0.003
)
SHORT = FitConfig(net=ActuatorNetConfig(width=8, lags=(0, 2)), updates=30, batch=32, unroll=4)


def pd_fitted(*traces: Trace) -> PD:
    model = fit("pd", log_of(*traces))
    assert isinstance(model, PD)
    return model


def test_the_best_constant_gains_are_found() -> None:
    """Without delay, lag and friction a servo is its gains."""
    result = static_law(log_of(servo(PDParameters(40.0, 1.5, 0.3))))
    assert result == pytest.approx([40.0, 1.5, 0.3], rel=1e-3)


def test_delay_lag_friction_and_gains_of_a_servo_are_recovered() -> None:
    true = PDParameters(40.0, 1.5, 0.2, lag_s=0.012, coulomb=0.3, stiction=0.2, stribeck=0.5)
    model = pd_fitted(servo(true, 3, noise=0.02), servo(true, 3, seed=5, noise=0.02))
    result = model.parameters_of
    assert int(model.delay) == 3 and result.stiffness == pytest.approx(40.0, rel=0.02)
    assert (result.damping, result.lag_s) == pytest.approx((1.5, 0.012), rel=0.05)
    assert result.offset == pytest.approx(0.2, abs=0.02)
    sliding = result.coulomb + result.load * 1.0  # at small torques
    assert sliding == pytest.approx(0.3, abs=0.05)
    figures = evaluate(model, log_of(servo(true, 3, seed=9))).figures
    assert figures["rollout_rmse_nm"] < 0.06 < 0.5 < figures["baseline_rmse_nm"]


@pytest.mark.slow
def test_a_servo_is_recovered_from_how_it_swings_a_pendulum() -> None:
    """From commands and positions alone, friction that grows with the motor and is larger at rest,
    and the armature, which no torque shows. A motion that it never made is predicted; the network,
    given the rotor's share of torques, leaves it as it is."""
    true = replace(SWUNG, coulomb=0.01, load=0.3, load_at_rest=0.15)
    model = fit("hybrid", log_of(*(swung(true, size) for size in (1.2, -0.8, 0.4)), rate_hz=100.0))
    assert isinstance(model, Hybrid)
    result = model.parameters_of
    assert result.armature == model.armature == pytest.approx(0.003, rel=0.1)
    assert result.stiffness == pytest.approx(1.0, rel=0.03)
    assert (result.load, result.load_at_rest) == pytest.approx((0.3, 0.15), abs=0.025)
    last, other = (swung(p, 0.5) for p in (true, replace(true, load_at_rest=0.0)))
    figures = evaluate(model, log_of(last, rate_hz=100.0)).figures
    without = np.abs(other.others["position"] - last.others["position"]).mean()
    assert figures["position_mae_rad"] < 0.002 < 0.005 < without
    # the torque at the pendulum, which lacks what the rotor took
    assert figures["rollout_rmse_nm"] < 0.1 * figures["torque_std_nm"]


def test_a_hybrid_adds_what_the_closed_form_leaves() -> None:
    """Of a torque T a part tanh(T) Nm is lost; what is added is the less the more it costs."""
    traces = [servo(PDParameters(40.0, 0.5), samples=600, seed=seed) for seed in (0, 3, 9)]
    *some, last = (replace(t, torque=t.torque - np.tanh(t.torque)) for t in traces)
    models = [
        fit(kind, log_of(*some), FitConfig(updates=300, correction=cost))
        for kind, cost in (("hybrid", 0.0), ("hybrid", 1.0), ("pd", 0.0))
    ]
    free, costly, none = (evaluate(m, log_of(last)).figures["rmse_nm"] for m in models)
    assert free < 0.5 * costly < costly < none


def test_a_limit_that_falls_with_speed_is_recovered() -> None:
    true = PDParameters(60.0, 0.0, limit=2.5, limit_slope=0.4)
    result = pd_fitted(servo(true), servo(true, seed=3)).parameters_of
    assert result.limit == pytest.approx(2.5, rel=0.03)
    assert result.limit_slope == pytest.approx(0.4, rel=0.1)


def test_the_closed_form_is_fitted_to_a_stretch_of_every_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two servos of stiffness 20 and 60: between them, not the first's."""
    monkeypatch.setattr("npmp.actuators.servo_fit.MAX_SAMPLES", 500)
    traces = [servo(PDParameters(stiff, 1.0), name=f"s{stiff:g}", seed=3) for stiff in (20.0, 60.0)]
    assert pd_fitted(*traces).parameters_of.stiffness == pytest.approx(40.0, rel=0.1)


def test_a_log_of_constant_torques_is_refused() -> None:
    trace = servo(PDParameters(1.0, 0.0), samples=40)
    for kind in ("pd", "mlp"):
        with pytest.raises(InputError, match="torque"):
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
    figures = evaluate(fit(kind, log_of(*traces), config), log_of(last)).figures
    assert figures["rollout_rmse_nm"] < 0.5 * figures["baseline_rmse_nm"]
    assert ("current_rmse_a" in figures) is (kind == "conv")
    if kind == "conv":
        baseline = 0.7 * figures["baseline_current_rmse_a"]
        assert baseline == pytest.approx(figures["baseline_rmse_nm"], rel=1e-3)
        assert 0.7 * figures["current_std_a"] == pytest.approx(figures["torque_std_nm"], rel=1e-3)
        assert figures["actuators"]["one"]["current_std_a"] == figures["current_std_a"]
        assert 0.7 * figures["current_rmse_a"] < 0.3 * baseline
        assert 0.7 * figures["rollout_current_rmse_a"] < 0.5 * baseline


@pytest.mark.parametrize("kind", ["mlp", "conv", "vae", "pd", "hybrid"])
def test_a_seed_gives_one_model(kind: str) -> None:
    log = log_of(
        *(servo(PDParameters(stiff, 1.0), name=f"s{stiff}", samples=300) for stiff in (20.0, 40.0))
    )
    first, again, other = (fit(kind, log, SHORT, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert kind == "pd" or any(not torch.equal(first[name], other[name]) for name in first)


def test_gains_change_without_new_data() -> None:
    """Fitted at kp 20 and 40, a model predicts torques at 80: its reference does."""
    traces = [
        replace(servo(PDParameters(kp, 1.0, lag_s=0.01), seed=i), kp=kp, kd=0.0, limit=1e3)
        for i, kp in enumerate((20.0, 40.0, 80.0))
    ]
    model = fit("pd", log_of(*traces[:2]))
    assert model.contract.gains and model.contract.kp in (20.0, 40.0)
    assert isinstance(model, PD) and model.parameters_of.stiffness == pytest.approx(1.0, rel=0.01)
    figures = evaluate(model, log_of(traces[2])).figures
    assert figures["rollout_rmse_nm"] < 0.02 * figures["baseline_rmse_nm"]
    refusal("motion_0, one lacks kp", inputs_of, replace(traces[0], kp=math.nan), model.contract)


def test_a_vae_s_latents_order_actuators_as_their_stiffness_does() -> None:
    stiff = (20.0, 30.0, 40.0, 50.0, 60.0, 70.0)

    def named(name: str, k: float, seed: int) -> Trace:
        return servo(PDParameters(k, 1.0), name=name, samples=500, seed=seed)

    traces = [named(f"k{k:g}", k, i) for i, k in enumerate(stiff)]
    net = ActuatorNetConfig(width=16, lags=(0,), latent_dim=1)
    model = fit("vae", log_of(*traces), FitConfig(net=net, updates=1500, batch=128))
    assert isinstance(model, MLP) and model.codes is not None
    assert abs(np.corrcoef(model.codes[:, 0, 0].detach().numpy(), stiff)[0, 1]) > 0.9


def test_what_cannot_be_fitted_is_refused() -> None:
    log = log_of(servo(PDParameters(20.0, 1.0), samples=40))
    refusal("model=vae", fit, "vae", log)
    refusal("unroll=200", fit, "conv", log, replace(SHORT, unroll=200))
    refusal("learning_rate=1e", fit, "mlp", log, replace(SHORT, learning_rate=1e30))
    refusal("voltage", fit, "mlp", log, SHORT, channels=["voltage"])
    refusal("channels=", fit, "pd", log, SHORT, channels=["temperature"])
    refusal("rate_hz=50", evaluate, fit("mlp", log, SHORT), replace(log, rate_hz=50.0))
