"""Models of an actuator's torque: pure functions of a sample and a memory, for any joints.

As in robot-NPMP, a model has two parts. `reference` is the firmware's PD in closed form: gains,
limits and control mode can change without new data. The response of motor, gears and sensors is
learned.

Inputs (..., C) of a sample are the effort (`reference` where the log has gains, else the position
error [rad]), the velocity [rad/s], and further channels (voltage, temperature). The output is a
torque [Nm], of convolutions also a current [A] where the log has it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError, check_available
from mocap_data.input_files import read_json
from npmp.actuators.actuator_log import Float32s, Trace
from npmp.actuators.servo import (
    PDParameters,
    Values,
    advance_bristle,
    initial_deflection,
    joint_torque,
    lag_fraction,
    limit_torque,
    motor_target,
)
from npmp.core import artifact, ranges

# version 1 had another closed form; its networks are the same
SCHEMA = "npmp.actuator"
VERSION = 2
KINDS = ("pd", "hybrid", "mlp", "conv", "vae")
# [samples] delay of a servo [D]
MAX_DELAY = 8
# samples in the convolutions' input [robot-NPMP]
WINDOW = 8
# of an effort
NO_LIMIT = 1e6
# standard deviations of velocity that are 1 for a hybrid's network [D]
SPEED_SCALE = 10.0
# standard deviation of the latents' means before a fit, and their log-std [D]
LATENT_SPREAD = 0.3
LATENT_LOG_STD = -2.0


@dataclass(frozen=True)
class ActuatorNetConfig:
    """Sizes of the learned models. Raises ValueError for values out of range."""

    # samples back in the MLP's input [Hwangbo: 0, 4, 8 at 400 Hz; D]
    lags: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8)
    # units of a layer [Hwangbo; D for the convolutions]
    width: int = 32
    # dimension of a vae's latents, which differ by actuator [D]
    latent_dim: int = 4

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "width", "latent_dim")
        if not self.lags or list(self.lags) != sorted(set(self.lags)) or self.lags[0] != 0:
            raise ValueError(f"lags={list(self.lags)}: must rise from 0")


@dataclass(frozen=True)
class ActuatorContract:
    """A model's sizes, scales and training data; actuator.json beside its weights."""

    kind: str
    # rate of its samples, and of the physics that uses it
    rate_hz: float
    actuators: list[str]
    # further inputs after effort and velocity
    channels: list[str]
    # true: effort is `reference` with the log's gains; false: effort is the position error
    gains: bool
    # standard deviations of effort, velocity and channels
    input_scale: list[float]
    # means of the channels; 0 for effort and velocity
    input_mean: list[float]
    # [Nm]
    torque_scale: float
    # a, b, c of torque = a position error - b velocity + c, the best constant gains
    baseline: list[float]
    # gains of most of the log, in its unit of effort per rad
    kp: float = 1.0
    # per rad/s
    kd: float = 0.0
    # limit of the effort
    limit: float = NO_LIMIT
    # [Nm] largest torque of the log, a bound of mlp, vae and conv
    largest: float = NO_LIMIT
    # [A]; 0: the model predicts no current
    current_scale: float = 0.0
    # as `baseline`; empty: the model predicts no current
    current_baseline: list[float] = field(default_factory=list)
    net: ActuatorNetConfig = field(default_factory=ActuatorNetConfig)
    licence: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_available("kind", [self.kind], KINDS)
        if not len(self.input_scale) == len(self.input_mean) == 2 + len(self.channels):
            raise ValueError(
                "input_scale, input_mean: expected a number for effort, velocity and each channel"
            )
        scales = (*self.input_scale, self.torque_scale, self.rate_hz)
        if not all(0.0 < scale < math.inf for scale in scales):
            raise ValueError("input_scale, torque_scale, rate_hz: must be finite and above 0")
        if self.kp < 0.0 or self.kd < 0.0 or not (self.limit > 0.0 and self.largest > 0.0):
            raise ValueError("kp, kd: must be at least 0; limit, largest: must be above 0")
        if len(self.baseline) != 3 or not self.actuators:
            raise ValueError("baseline: expected three numbers; actuators: expected a name")


def reference(
    error: Values,
    velocity: Values,
    kp: float,
    kd: float,
    limit: float,
    feedforward: Values | float = 0.0,
) -> Values:
    """The firmware's effort (...) from errors (...) [rad] and velocities (...) [rad/s]: kp error -
    kd velocity + feedforward, within the limit.

    All in one unit of effort (Nm, a share of the supply), per rad and rad/s. kp = kd = 0 is torque
    control; kp = 0 and feedforward = kd times the commanded velocity is velocity control.
    """
    return (kp * error - kd * velocity + feedforward).clip(-limit, limit)


def inputs_of(trace: Trace, contract: ActuatorContract) -> Float32s:
    """A model's inputs (T, C) from a trace. Raises InputError for a missing one."""
    where = f"{trace.recording}, {trace.actuator}"
    effort = trace.position_error
    if contract.gains:
        if not math.isfinite(trace.kp):
            raise InputError(f"{where} lacks kp, an input of this model")
        feedforward = trace.others.get("feedforward", 0.0)
        effort = reference(effort, trace.velocity, *gains_of(trace), feedforward)
    if missing := [name for name in contract.channels if name not in trace.others]:
        raise InputError(f"{where} lacks {', '.join(missing)}, an input of this model")
    columns = (effort, trace.velocity, *(trace.others[name] for name in contract.channels))
    return np.stack(columns, -1).astype(np.float32)


def gains_of(trace: Trace) -> tuple[float, float, float]:
    """kp, kd (0 if absent) and limit (`NO_LIMIT` if absent) of a trace."""
    kd = trace.kd if math.isfinite(trace.kd) else 0.0
    limit = trace.limit if math.isfinite(trace.limit) else NO_LIMIT
    return trace.kp, kd, limit


class Memory(NamedTuple):
    """A model's memory of N joints."""

    # (N, H, C) scaled inputs of the last H samples, the oldest first
    inputs: Tensor
    # (N, H) scaled outputs of these samples; for a closed form (N, 2), see `PD.first_kept`
    kept: Tensor
    # (N, d) codes of the actuators; (N, 0) except for a vae
    latent: Tensor


class ActuatorModel(nn.Module, ABC):
    """A torque law with its contract; see `make`."""

    # samples in its input, with the present one
    history: int
    # whether its own torques are inputs
    recursive = False
    scale: Tensor
    mean: Tensor

    def __init__(self, contract: ActuatorContract):
        super().__init__()
        self.contract = contract
        self.register_buffer("scale", torch.tensor(contract.input_scale), persistent=False)
        self.register_buffer("mean", torch.tensor(contract.input_mean), persistent=False)
        self.latent_dim = contract.net.latent_dim if contract.kind == "vae" else 0

    def effort(self, error: Tensor, velocity: Tensor) -> Tensor:
        """The first input (...) from position errors (...) [rad] and velocities (...) [rad/s], with
        the contract's gains."""
        c = self.contract
        return reference(error, velocity, c.kp, c.kd, c.limit) if c.gains else error

    def begin(self, inputs: Tensor, torque: Tensor | None = None) -> Memory:
        """The memory of joints at rest at their first sample, with the mean latents.

        Args:
          inputs: (N, C). torque: (N,) [Nm] at that sample; None: 0, or a closed form's without
            friction.
        """
        n = len(inputs)
        before = self.scaled(inputs).unsqueeze(1).expand(n, self.history, -1)
        return Memory(before, self.first_kept(inputs, torque), inputs.new_zeros(n, self.latent_dim))

    def first_kept(self, inputs: Tensor, torque: Tensor | None) -> Tensor:
        """`Memory.kept` of `begin`."""
        first = inputs.new_zeros(len(inputs)) if torque is None else torque
        scaled = first / self.contract.torque_scale
        return scaled.unsqueeze(-1).expand(len(first), self.history)

    @property
    def armature(self) -> float:
        """The rotor's inertia at the joint [kg m^2], which the torques also accelerate; 0 if
        unknown."""
        return 0.0

    def scaled(self, inputs: Tensor) -> Tensor:
        """Normalized inputs (..., C)."""
        return (inputs - self.mean) / self.scale

    def step(self, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The torques (N,) [Nm] of a sample (N, C), and the memory after it."""
        torque, _, memory = self.step_with_current(inputs, memory)
        return torque, memory

    def step_with_current(
        self, inputs: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor | None, Memory]:
        """`step`, with the currents (N,) [A] of a model that predicts them."""
        output, memory = self.advance(self.scaled(inputs), memory)
        current = output[:, 1] * self.contract.current_scale if output.shape[1] > 1 else None
        return output[:, 0] * self.contract.torque_scale, current, memory

    def advance(self, scaled: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """A step of scaled inputs (N, C) to scaled outputs (N, 1), or (N, 2) with a current."""
        window = torch.cat((memory.inputs[:, 1:], scaled.unsqueeze(1)), 1)
        output, kept = self.law(window, memory.kept, memory.latent)
        return output, Memory(window, kept, memory.latent)

    def within(self, torque: Tensor) -> Tensor:
        """A network's scaled torques, bounded by the log's largest with a straight-through
        gradient."""
        most = self.contract.largest / self.contract.torque_scale
        return torque.detach().clamp(-most, most) + (torque - torque.detach())

    @abstractmethod
    def law(self, window: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled outputs (N, 1 or 2) and the new `Memory.kept`, of scaled inputs (N, H, C), the
        present one last, the old `Memory.kept`, and latents (N, d)."""

    def rollout(self, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Torques (T, N) [Nm] of samples (T, N, C), free-running."""
        torques = []
        for sample in inputs:
            torque, memory = self.step(sample, memory)
            torques.append(torque)
        return torch.stack(torques), memory

    def summary(self) -> str:
        """A line with its kind, actuators, rate and size."""
        contract = self.contract
        numbers = sum(tensor.numel() for tensor in self.state_dict().values())
        count = len(contract.actuators)
        rate = f"{contract.rate_hz:g} Hz"
        return f"{contract.kind} of {count} actuators at {rate}, {numbers:,} numbers"

    def save(self, folder: Path) -> None:
        """Write FOLDER/actuator.json and actuator.safetensors. Raises OSError."""
        artifact.write(
            folder, "actuator", SCHEMA, VERSION, asdict(self.contract), self.state_dict()
        )

    def check_rate(self, rate_hz: float) -> None:
        """Raise InputError for another rate than the model's, at which its lags are other times."""
        if abs(rate_hz - self.contract.rate_hz) > 1e-3 * self.contract.rate_hz:
            raise InputError(
                f"rate_hz={rate_hz:g}: the actuator model's is {self.contract.rate_hz:g} Hz;"
                f" npmp actuator fit rate_hz={rate_hz:g} fits one"
            )


class MLP(ActuatorModel):
    """Three layers over past and current errors and velocities (Hwangbo et al. 2019), and for a vae
    over a latent of the actuator (Levine)."""

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        net = contract.net
        self.history = net.lags[-1] + 1
        self.at = [self.history - 1 - lag for lag in net.lags]
        width = len(net.lags) * len(contract.input_scale) + self.latent_dim
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(width, net.width), nn.Softsign()]
            width = net.width
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self.codes: nn.Parameter | None = None
        # mean and log-std of each fitted actuator's latent
        if self.latent_dim:
            # different means at first: the network ignores latents that are all N(0, I)
            mean = LATENT_SPREAD * torch.randn(len(contract.actuators), self.latent_dim)
            log_std = torch.full_like(mean, LATENT_LOG_STD)
            self.codes = nn.Parameter(torch.stack((mean, log_std), 1))

    def predict(self, inputs: Tensor, latent: Tensor) -> Tensor:
        """Scaled torques (N,) of scaled inputs (N, lags, C) at the lags, the latest first, and
        latents (N, d)."""
        return self.within(self.layers(torch.cat((inputs.flatten(1), latent), -1)).squeeze(-1))

    def law(self, window: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`; `kept` stays."""
        return self.predict(window[:, self.at], latent).unsqueeze(-1), kept

    def sample_latents(
        self, actuators: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Sampled latents (N, d) of fitted actuators (N,), and the mean KL to N(0, I) per
        actuator."""
        if self.codes is None:
            return torch.zeros(len(actuators), 0), torch.zeros(())
        mean, log_std = self.codes.unbind(1)
        std = log_std.exp()
        kl = (0.5 * (mean.square() + std.square() - 1.0) - log_std).sum(-1).mean()
        noise = torch.randn(len(actuators), self.latent_dim, generator=generator)
        return mean[actuators] + std[actuators] * noise, kl

    @torch.no_grad()
    def standardize_latents(self) -> None:
        """Whiten the latent space, and undo that in the first layer: predictions stay, and samples
        of N(0, I) are distributed as the actuators."""
        first = self.layers[0]
        assert self.codes is not None and isinstance(first, nn.Linear)  # for the type checker
        mean, log_std = self.codes.double().unbind(1)
        middle = mean.mean(0)
        var = log_std.exp().square().mean(0)
        covariance = (mean - middle).T @ (mean - middle) / len(mean) + var.diag()
        scale, turn = torch.linalg.eigh(covariance)
        # z' = (z - middle) whiten, z = z' unwhiten^T + middle
        whiten = turn / scale.sqrt()
        unwhiten = turn * scale.sqrt()
        weight = first.weight.double()[:, -self.latent_dim :]
        first.bias.add_((weight @ middle).float())
        first.weight[:, -self.latent_dim :] = (weight @ unwhiten).float()
        # variances along the new axes
        variance = log_std.exp().square() @ whiten.square()
        codes = torch.stack(((mean - middle) @ whiten, 0.5 * variance.log()), 1)
        self.codes.copy_(codes.float())


class Convolutions(ActuatorModel):
    """Strided causal convolutions over the last eight samples; the output is added to the last
    torque, which is also an input, as a residual drifts without it (robot-NPMP)."""

    history = WINDOW
    recursive = True

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        width = contract.net.width
        channels = len(contract.input_scale) + 1
        # a kernel of two samples at a stride of two is a linear layer over pairs
        self.pairs = nn.ModuleList(nn.Linear(2 * size, width) for size in (channels, width, width))
        self.head = nn.Linear(width, 2 if contract.current_scale else 1)
        with torch.no_grad():
            # at first the torque hardly changes
            self.head.weight *= 0.1

    def law(self, window: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`; the torque is a residual, the current is not."""
        x = torch.cat((window, kept.unsqueeze(-1)), -1)
        for layer in self.pairs:
            x = nn.functional.softsign(layer(x.reshape(len(x), x.shape[1] // 2, -1)))
        output = self.head(x[:, 0])
        torque = self.within(kept[:, -1:] + output[:, :1])
        return torch.cat((torque, output[:, 1:]), -1), torch.cat((kept[:, 1:], torque), 1)


class PD(ActuatorModel):
    """A servo in closed form: PD with a delay and a first-order lag, a torque limit and friction
    (`npmp.actuators.servo`)."""

    history = MAX_DELAY + 1
    delay: Tensor
    values: Tensor

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        # [samples]
        self.register_buffer("delay", torch.zeros((), dtype=torch.long))
        self.register_buffer("values", torch.zeros(len(fields(PDParameters))))

    def _apply(self, fn: Any, recurse: bool = True) -> PD:
        """Leave the closed form's numbers on the host, where `law` reads them at every step."""
        delay = self.delay
        values = self.values
        super()._apply(fn, recurse)
        self.delay = delay
        self.values = values
        return self

    @property
    def parameters_of(self) -> PDParameters:
        """The fitted numbers."""
        return PDParameters(*self.values.tolist())

    def invalid_parameters(self) -> str:
        """Names of parameters out of range, "" for none."""
        p = self.parameters_of
        wrong = [name for name, value in asdict(replace(p, offset=0.0)).items() if value < 0.0]
        wrong += [name for name in ("limit", "stribeck") if getattr(p, name) == 0.0]
        return ", ".join(wrong + ["delay"] * (not 0 <= int(self.delay) <= MAX_DELAY))

    @property
    def armature(self) -> float:
        """As `ActuatorModel.armature`: of a fit to a pendulum's motion."""
        return self.parameters_of.armature

    def first_kept(self, inputs: Tensor, torque: Tensor | None) -> Tensor:
        """As `ActuatorModel.first_kept`: (N, 2), the scaled motor torque before its limit, and the
        deflection of the friction's bristle, -1 to 1, which makes up the difference to `torque`."""
        p = self.parameters_of
        velocity = inputs[:, 1]
        motor = motor_target(p, inputs[:, 0], velocity)
        deflection = torch.zeros_like(motor)
        if torque is not None:
            deflection = initial_deflection(p, motor, velocity, torque)
        return torch.stack((motor / self.contract.torque_scale, deflection), -1)

    def law(self, window: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        p = self.parameters_of
        scale = self.contract.torque_scale
        rate = self.contract.rate_hz
        inputs = window[..., :2] * self.scale[:2] + self.mean[:2]
        effort = inputs[:, self.history - 1 - int(self.delay), 0]
        velocity = inputs[:, -1, 1]
        motor = kept[:, 0] * scale
        fraction = float(lag_fraction(p.lag_s, rate))
        motor = motor + (motor_target(p, effort, velocity) - motor) * fraction
        deflection, friction = advance_bristle(kept[:, 1], velocity, rate)
        torque = joint_torque(p, motor, velocity, friction)
        limited = limit_torque(p, motor, velocity)
        torque = torque + scale * self.correction(limited, velocity, friction, torque)
        return (torque / scale).unsqueeze(-1), torch.stack((motor / scale, deflection), -1)

    def correction(
        self, motor: Tensor, velocity: Tensor, friction: Tensor, torque: Tensor
    ) -> Tensor:
        """A network's scaled addition (N,) to the torque, from the limited motor torque [Nm], the
        velocity [rad/s], friction as a share of its limit, and the closed form's torque [Nm]; 0
        without a network."""
        return torch.zeros_like(torque)


class Hybrid(PD):
    """A servo in closed form with a network for the residual torque. Its inputs are bounded by the
    closed form's limit; without biases it is an odd function."""

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        width = contract.net.width
        last = nn.Linear(contract.net.width, 1, bias=False)
        # at first only the closed form
        nn.init.zeros_(last.weight)
        first, second = (nn.Linear(size, width, bias=False) for size in (4, width))
        self.layers = nn.Sequential(first, nn.Softsign(), second, nn.Softsign(), last)

    def correction(
        self, motor: Tensor, velocity: Tensor, friction: Tensor, torque: Tensor
    ) -> Tensor:
        scale = self.contract.torque_scale
        speed = SPEED_SCALE * self.scale[1]
        inputs = torch.stack((motor / scale, velocity / speed, friction, torque / scale), -1)
        added: Tensor = self.layers(inputs)
        return added.squeeze(-1)


def make(contract: ActuatorContract) -> ActuatorModel:
    """The model of a contract, untrained."""
    kinds: dict[str, type[ActuatorModel]]
    kinds = {"pd": PD, "hybrid": Hybrid, "mlp": MLP, "conv": Convolutions, "vae": MLP}
    return kinds[contract.kind](contract)


def load(folder: str | Path, device: str | torch.device = "cpu") -> ActuatorModel:
    """Read a folder that `ActuatorModel.save` wrote.

    Raises:
      InputError: for a file that is missing, damaged, of another version or does not match the
        contract, and for a closed form of version 1 or with parameters out of range.
    """
    description = Path(folder) / "actuator.json"
    version = VERSION
    content = read_json(description) if description.exists() else None
    if isinstance(content, dict) and content.get("version") == 1:
        if content.get("kind") == "pd":
            raise InputError(
                f"'{description}': version 1 of the closed form, expected {VERSION}; fit it again"
            )
        version = 1
    model = artifact.load(
        Path(folder), "actuator", "actuator model", SCHEMA, version, ActuatorContract, make
    )
    if isinstance(model, PD) and (names := model.invalid_parameters()):
        raise InputError(f"'{folder}': {names}: out of range")
    return model.to(device).eval()
