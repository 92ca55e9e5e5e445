"""Torque laws: numbers by hand, files, rates."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from npmp.actuators.models import (
    MLP,
    PD,
    ActuatorContract,
    ActuatorModel,
    ActuatorNetConfig,
    Convolutions,
    Hybrid,
    load,
    make,
    reference,
)
from npmp.actuators.servo import PDParameters, initial_deflection, joint_torque, lag_fraction
from npmp.core.seeding import seeded
from tests.refusals import refusal

NET = ActuatorNetConfig(lags=(0, 2), width=4, latent_dim=2)


def contract(kind: str, **others: object) -> ActuatorContract:
    blank = ActuatorContract(
        kind, 400.0, ["a", "b", "c"], [], False, [0.1, 2.0], [0.0, 0.0], 5.0, [1.0, 0.0, 0.0]
    )
    return replace(blank, **({"net": NET} | others))  # type: ignore[arg-type]


def model_of(kind: str, **others: object) -> ActuatorModel:
    with seeded(0):
        return make(contract(kind, **others)).eval()


def pd_of(kind: str = "pd", **parameters: float) -> PD:
    model = model_of(kind)
    assert isinstance(model, PD)
    given = {"stiffness": 0.0, "damping": 0.0} | parameters
    model.values.copy_(torch.tensor(astuple(PDParameters(**given))))
    return model


def rolled(model: ActuatorModel, inputs: torch.Tensor) -> torch.Tensor:
    return model.rollout(inputs, model.begin(inputs[0]))[0]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_the_reference_is_a_pid_within_its_limit() -> None:
    """2 * 0.5 - 0.1 * 3 + 0.05 = 0.75; 2 * 5 - 0 = 10, cut at 4; -4 likewise."""
    error, velocity = np.array([0.5, 5.0, -5.0]), np.array([3.0, 0.0, 0.0])
    np.testing.assert_allclose(reference(error, velocity, 2.0, 0.1, 4.0, 0.05), [0.75, 4.0, -4.0])
    result = reference(torch.from_numpy(error), torch.from_numpy(velocity), 2.0, 0.1, 4.0, 0.05)
    assert result.tolist() == pytest.approx([0.75, 4.0, -4.0])


def test_a_model_takes_errors_or_efforts_as_its_log_told() -> None:
    error, velocity = torch.tensor([0.5]), torch.tensor([3.0])
    assert model_of("mlp").effort(error, velocity).item() == 0.5
    with_gains = model_of("mlp", gains=True, kp=2.0, kd=0.1, limit=4.0)
    assert with_gains.effort(error, velocity).item() == pytest.approx(0.7)  # 2 * 0.5 - 0.1 * 3


def test_what_a_motor_delivers() -> None:
    """Towards limit - slope * velocity in its direction: 3 - 0.5 * 2 = 2 forwards, of which 9 Nm
    make 2 tanh(9 / 2), -(3 + 1) = -4 against it; friction 0.1 + 0.2 exp(-2 / 2) + (0.05 + 0.3
    exp(-1)) |torque|, half of it where the joint gives half."""
    friction = {"coulomb": 0.1, "stiction": 0.2, "stribeck": 2.0, "load": 0.05, "load_at_rest": 0.3}
    p = PDParameters(1.0, 0.0, limit=3.0, limit_slope=0.5, **friction)
    motor = np.array([2.0 * math.tanh(9 / 2), -4.0 * math.tanh(9 / 4), 3.0 * math.tanh(1 / 3)])
    torque = joint_torque(p, *np.array([[9.0, -9.0, 1.0], [2.0, 2.0, 0.0], [1.0, 0.5, -1.0]]))
    bears = 0.1 + 0.2 / math.e + (0.05 + 0.3 / math.e) * abs(motor[:2])
    expected = [*motor[:2] - bears * [1.0, 0.5], motor[2] + 0.3 + 0.35 * motor[2]]
    np.testing.assert_allclose(torque, expected)
    # and back
    assert initial_deflection(p, np.array([9.0]), np.array([2.0]), torque[:1]) == pytest.approx(
        [1.0]
    )
    assert initial_deflection(p, np.array([1.0]), np.array([0.0]), motor[2:]) == pytest.approx(
        [0.0]
    )


def moved_by(model: ActuatorModel, load: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles and speeds (N,) of masses of 0.01 kg m^2, at rest first, after 1 s under loads (N,)
    [Nm] beside the model."""
    q, v = torch.zeros_like(load), torch.zeros_like(load)
    memory = model.begin(torch.zeros(len(load), 2))
    for _ in range(400):
        torque, memory = model.step(torch.stack((torch.zeros_like(v), v), -1), memory)
        v = v + (torque + load) / 0.01 / 400
        q = q + v / 400
    return q, v


def test_friction_holds_a_load_below_its_limit_and_slides_above_it() -> None:
    """Of 0.5 Nm, which the joint bears after 0.01 rad: 0.2 Nm after 0.004, 0 after none. 0.6 Nm
    slide, by 0.1 Nm over 0.2 Nm s/rad: at 0.5 rad/s. The other way likewise, and each joint as if
    it were alone."""
    model, loads = pd_of(damping=0.2, coulomb=0.5), torch.tensor([0.2, 0.6, -0.2, -0.6, 0.0])
    q, v = moved_by(model, loads)
    torch.testing.assert_close(v, torch.tensor([0.0, 0.5, 0.0, -0.5, 0.0]), rtol=0, atol=1e-3)
    torch.testing.assert_close(q[[0, 2, 4]], torch.tensor([0.004, -0.004, 0.0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(moved_by(model, loads[1:2])[0], q[1:2])


def test_a_joint_begins_where_friction_bears_the_rest() -> None:
    """Nothing asked, 0.3 Nm there, friction of 0.5 Nm: given by -0.6. Of 0.9 Nm it bears 0.5.
    Turned around, all turns around."""
    model, inputs = pd_of(coulomb=0.5), drawn(6, 3, 2)
    memory = model.begin(torch.zeros(3, 2), torch.tensor([0.3, 0.9, -0.3]))
    torch.testing.assert_close(memory.kept[:, 1], torch.tensor([-0.6, -1.0, 0.6]))
    torque, _ = model.step(torch.zeros(3, 2), memory)
    torch.testing.assert_close(torque, torch.tensor([0.3, 0.5, -0.3]))
    torch.testing.assert_close(rolled(model, -inputs), -rolled(model, inputs))


def test_a_hybrid_begins_as_its_closed_form_and_its_network_turns_around_with_it() -> None:
    p = {"stiffness": 40.0, "damping": 0.5, "limit": 9.0, "coulomb": 0.5, "load": 0.1}
    model, inputs = pd_of("hybrid", **p), drawn(6, 3, 2)
    assert isinstance(model, Hybrid)
    alone = rolled(pd_of(**p), inputs)
    assert torch.equal(rolled(model, inputs), alone)
    torch.nn.init.ones_(list(model.layers.parameters())[-1])
    torque = rolled(model, inputs)
    assert not torch.equal(torque, alone)
    torch.testing.assert_close(rolled(model, -inputs), -torque)


def test_a_pd_answers_late_and_through_its_lag() -> None:
    """Stiffness 10, a delay of 2 samples, a lag of 1 / 400 s: from a step of 0.3 rad on 0, 0, then
    3 (1 - 1/e) and 3 (1 - 1/e^2) Nm."""
    model = pd_of(stiffness=10.0, lag_s=1 / 400)
    model.delay.fill_(2)
    inputs = torch.zeros(5, 1, 2)
    inputs[1:, 0, 0] = 0.3
    rises = [3 * (1 - math.exp(-n)) for n in (1, 2)]
    assert rolled(model, inputs)[:, 0].tolist() == pytest.approx([0, 0, 0, *rises], abs=1e-6)
    assert lag_fraction(0.0, 400.0) == 1.0


def test_an_mlp_sees_its_lags() -> None:
    """Of lags 0 and 2, what was one sample ago makes no difference."""
    model, rows = model_of("mlp"), drawn(4, 3, 2)
    assert isinstance(model, MLP)
    _, memory = model.rollout(rows[1:3], model.begin(rows[0]))
    torque, _ = model.step(rows[3], memory)
    changed = memory._replace(inputs=memory.inputs.clone())
    changed.inputs[:, -1] += 1.0
    torch.testing.assert_close(model.step(rows[3], changed)[0], torque)
    seen = model.scaled(torch.stack((rows[3], rows[1]), 1))
    torch.testing.assert_close(model.predict(seen, torch.zeros(3, 0)) * 5.0, torque)


def test_convolutions_look_back_eight_samples_and_add_to_the_torque_before() -> None:
    model = model_of("conv")
    assert isinstance(model, Convolutions)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.constant_(model.head.bias, 0.1)
    inputs, first = drawn(4, 2, 2), torch.tensor([1.0, -2.0])
    torque, _ = model.rollout(inputs, model.begin(inputs[0], first))
    torch.testing.assert_close(torque, first + 0.5 * torch.arange(1, 5).unsqueeze(-1))
    assert model.begin(inputs[0]).inputs.shape == (2, 8, 2)


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_no_network_goes_beyond_the_largest_torque_that_it_was_fitted_to(kind: str) -> None:
    """But learns to, if it must: its gradient does not end there."""
    bounded = model_of(kind, largest=3.0)
    assert isinstance(bounded, Convolutions | MLP)
    last = bounded.head if isinstance(bounded, Convolutions) else bounded.layers[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    inputs = torch.zeros(4, 1, 2)
    for sign in (1.0, -1.0):
        # of a torque_scale of 5 Nm: 2.5 Nm, of convolutions a step
        torch.nn.init.constant_(last.bias, sign * 0.5)
        later = 3.0 if kind == "conv" else 2.5
        expected = pytest.approx([sign * 2.5, *3 * [sign * later]])
        assert rolled(bounded, inputs)[:, 0].tolist() == expected
        torch.nn.init.constant_(last.bias, sign * 0.7)
        torque = rolled(bounded, inputs[:1])
        assert torque.tolist() == [[pytest.approx(sign * 3.0)]]
        last.bias.grad = None
        torque.sum().backward()
        assert last.bias.grad is not None and last.bias.grad.tolist() == [pytest.approx(5.0)]


def test_a_tree_of_pairs_is_what_strided_convolutions_compute() -> None:
    model = model_of("conv")
    assert isinstance(model, Convolutions)
    seen, kept = torch.randn(3, 8, 2), torch.randn(3, 8)
    x = torch.cat((seen, kept.unsqueeze(-1)), -1).transpose(1, 2)
    for layer in model.pairs:
        assert isinstance(layer, torch.nn.Linear)
        kernel = layer.weight.unflatten(1, (2, -1)).transpose(1, 2)
        convolved = torch.nn.functional.conv1d(x, kernel, layer.bias, stride=2)
        x = torch.nn.functional.softsign(convolved)
    output, after = model.law(seen, kept, torch.zeros(3, 0))
    torch.testing.assert_close(output, kept[:, -1:] + model.head(x[:, :, 0]))
    assert torch.equal(after, torch.cat((kept[:, 1:], output), 1))


def test_a_current_is_predicted_where_the_log_had_one() -> None:
    inputs = torch.zeros(3, 2)
    assert model_of("conv").step_with_current(inputs, model_of("conv").begin(inputs))[1] is None
    model = model_of("conv", current_scale=2.0)
    torque, current, _ = model.step_with_current(inputs, model.begin(inputs))
    assert current is not None and torque.shape == current.shape == (3,)


def test_standardized_latents_leave_the_model_as_it_was() -> None:
    model = model_of("vae")
    assert isinstance(model, MLP) and model.codes is not None
    with torch.no_grad():
        means = torch.tensor([[2.0, 1.0], [0.0, 4.0], [1.0, -3.0]])
        model.codes.copy_(torch.stack((means, torch.tensor([-1.0, -2.0]).expand(3, 2)), 1))
        seen = torch.randn(3, 2, 2)
        before = model.predict(seen, model.codes[:, 0])
    model.standardize_latents()
    mean, log_std = model.codes.unbind(1)
    torch.testing.assert_close(model.predict(seen, mean), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mean.mean(0), torch.zeros(2), rtol=0, atol=1e-5)
    second = mean.square().mean(0) + log_std.exp().square().mean(0)
    torch.testing.assert_close(second, torch.ones(2))


@pytest.mark.parametrize("kind", ["mlp", "conv", "vae", "pd", "hybrid"])
def test_a_model_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    if isinstance(model, PD):
        model.values.copy_(torch.linspace(0.1, 1, 12))
    model.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.contract == model.contract
    inputs = torch.randn(6, 3, 2)
    before, after = (m.rollout(inputs, m.begin(inputs[0], torch.ones(3)))[0] for m in (model, back))
    assert torch.equal(before, after)


def test_another_rate_is_refused() -> None:
    model = model_of("mlp")
    model.check_rate(400.1)
    refusal("rate_hz=395", model.check_rate, 395.0)


def test_networks_of_version_1_are_read_and_closed_forms_are_not(tmp_path: Path) -> None:
    """A closed form of then had ten numbers, and friction that held nothing."""
    for kind in ("mlp", "pd"):
        model_of(kind).save(tmp_path / kind)
        described = tmp_path / kind / "actuator.json"
        described.write_text(described.read_text().replace('"version": 2', '"version": 1'))
    assert load(tmp_path / "mlp").contract == contract("mlp")
    refusal("version 1", load, tmp_path / "pd")


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    model_of("mlp").save(tmp_path)
    refusal("no actuator model in", load, tmp_path / "nowhere")
    text = (tmp_path / "actuator.json").read_text()
    wrong_width = text.replace('"width": 4', '"width": 5')
    for wrong in (text.replace('"mlp"', '"lstm"'), wrong_width, text[:50]):
        (tmp_path / "actuator.json").write_text(wrong)
        refusal("", load, tmp_path)
    for wrong_contract in ({"input_scale": [1.0]}, {"torque_scale": 0.0}, {"baseline": []}):
        with pytest.raises(ValueError):
            replace(contract("mlp"), **wrong_contract)
    # a negative limit would turn every torque around
    for wrong_gains in ({"kp": -1.0}, {"kd": -1.0}, {"limit": 0.0}):
        with pytest.raises(ValueError, match="kp, kd"):
            replace(contract("mlp"), **wrong_gains)
    with pytest.raises(ValueError, match="lags="):
        ActuatorNetConfig(lags=(0, 4, 2))


@pytest.mark.parametrize(
    ("delay", "changed", "name"),
    [
        (9, {}, "delay"),  # would read the newest sample
        (0, {"stribeck": 0.0}, "stribeck"),  # 0 / 0 at rest
        (8, {"coulomb": -0.1, "offset": -0.1}, "coulomb"),
    ],
)
def test_a_closed_form_that_no_servo_has_is_refused(
    delay: int, changed: dict[str, float], name: str, tmp_path: Path
) -> None:
    model = pd_of(**({"stiffness": 10.0, "damping": 0.1} | changed))
    model.delay.fill_(delay)
    model.save(tmp_path)
    refusal(f"{name}: out of range", load, tmp_path)
