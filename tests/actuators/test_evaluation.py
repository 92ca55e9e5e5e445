"""Errors of a model whose torques are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from npmp.actuators import ActuatorLog, Trace
from npmp.actuators.evaluation import evaluate
from npmp.actuators.models import ActuatorContract, Convolutions, make


def constant_conv(rise: float) -> Convolutions:
    """It predicts the torque before plus `rise` [Nm]."""
    scales = [1.0, 1.0], [0.0, 0.0], 2.0
    contract = ActuatorContract("conv", 10.0, ["a"], [], False, *scales, [3.0, 0.5, 1.0])
    model = make(contract).eval()
    assert isinstance(model, Convolutions)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.constant_(model.head.bias, rise / 2.0)
    return model


def trace(torque: np.ndarray, name: str = "a") -> Trace:
    torque = torque.astype(np.float32)
    return Trace("run", name, np.ones_like(torque), np.full_like(torque, 2.0), torque)


def test_one_step_is_on_measured_torques_and_a_rollout_on_its_own() -> None:
    """Torque 0, 1, 0, 1, ...; the model predicts the torque before: one step is off by 1; its
    rollout from the first torque is 0, off by 1 half the time: sqrt(1/2). Constant gains predict
    3 * 1 - 0.5 * 2 + 1 = 3: off by 3 and 2, sqrt(13/2)."""
    figures = evaluate(constant_conv(0.0), ActuatorLog(10.0, (trace(np.arange(40) % 2),))).figures
    assert figures["rmse_nm"] == pytest.approx(np.sqrt(39 / 40))  # its first is right
    assert figures["rollout_rmse_nm"] == pytest.approx(np.sqrt(0.5))
    assert figures["baseline_rmse_nm"] == pytest.approx(np.sqrt(6.5))
    assert figures["torque_std_nm"] == 0.5


def test_currents_are_evaluated_where_log_and_model_have_them() -> None:
    """A model that predicts 0.5 A always, constant gains that predict 2 * 1 - 1 * 2 + 0.25 = 0.25
    A: of a current of 0 and 1 A in turn they are off by 0.5, and by 0.25 and 0.75, sqrt(0.3125)."""
    contract = constant_conv(0.0).contract
    model = make(replace(contract, current_scale=2.0, current_baseline=[2.0, 1.0, 0.25])).eval()
    assert isinstance(model, Convolutions)
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data[:] = torch.tensor([0.0, 0.25])
    amperes = (np.arange(40) % 2).astype(np.float32)
    known = replace(trace(np.zeros(40)), others={"current": amperes})
    figures = evaluate(model, ActuatorLog(10.0, (known,))).figures
    assert figures["current_rmse_a"] == figures["rollout_current_rmse_a"] == pytest.approx(0.5)
    assert figures["baseline_current_rmse_a"] == pytest.approx(np.sqrt(0.3125))
    assert figures["current_std_a"] == 0.5
    without = evaluate(model, ActuatorLog(10.0, (trace(np.zeros(40)),))).figures
    assert "current_rmse_a" not in without


def test_the_error_grows_over_the_seconds_of_a_rollout() -> None:
    """0.2 Nm per sample too much, at 10 Hz: after s seconds 2 s Nm, and 5 ms before no sample."""
    figures = evaluate(constant_conv(0.2), ActuatorLog(10.0, (trace(np.zeros(60)),))).figures
    after = {float(s): value for s, value in figures["rollout_rmse_nm_after_s"].items()}
    assert after == {0.1: pytest.approx(0.2), 0.25: pytest.approx(0.4), 0.5: pytest.approx(1.0)} | {
        s: pytest.approx(2.0 * s) for s in (1.0, 2.0)
    }


def test_traces_of_all_lengths_are_evaluated_as_if_alone() -> None:
    rng = np.random.default_rng(0)
    traces = [trace(rng.normal(size=n), name) for n, name in ((40, "a"), (25, "b"))]
    model = constant_conv(0.1)
    together = evaluate(model, ActuatorLog(10.0, tuple(traces))).figures["actuators"]
    for each in traces:
        alone = evaluate(model, ActuatorLog(10.0, (each,))).figures
        for name in ("rmse_nm", "rollout_rmse_nm", "baseline_rmse_nm"):
            assert together[each.actuator][name] == pytest.approx(alone[name], rel=1e-6)
