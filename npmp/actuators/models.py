"""Models of an actuator's torque: pure functions of a sample and a memory, for any number of joints
beside a simulator.

As in robot-NPMP, a model has two parts. `reference` is what the firmware computes, a PD in closed
form: gains, limits and control mode can change without new data. What motor, gears and sensors
make of it is learned.

Inputs (..., C) of a sample are the effort (`reference` where the log has the gains, else the
position error [rad]), the velocity [rad/s], and the channels that the model was fitted with
(voltage, temperature). The output is a torque [Nm], of convolutions also a current [A] where the
log has it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mocap_data.errors import InputError, check_available
from mocap_data.input_files import read_json
from npmp.actuators.actuator_log import Float32s, Trace
from npmp.core import artifact, ranges

# 1: a closed form of ten numbers; networks are what they were
SCHEMA = "npmp.actuator"
VERSION = 2
KINDS = ("pd", "hybrid", "mlp", "conv", "vae")
MOST_DELAY = 8  # samples that a servo's answer may come late [D]
GIVES = 0.01  # rad that a joint gives from the middle until friction is at its limit [D]
# damping of that over its stiffness: without it joints that friction holds go on trembling [D]
DAMPED_S = 0.005
WINDOW = 8  # samples that the convolutions see [robot-NPMP]
NO_LIMIT = 1e6  # of an effort
FASTER = 10.0  # than the spread of velocities is what a hybrid's network takes as 1 [D]
APART = (0.3, -2.0)  # spread of the latents' means before a fit, and their log-std [D]

Values = TypeVar("Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class ActuatorNetConfig:
    """Sizes of the learned models. Raises ValueError for values out of range."""

    # samples back that the MLP sees [Hwangbo: 0, 4, 8 at 400 Hz; D]
    lags: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8)
    # units of a layer [Hwangbo; D for the convolutions]
    width: int = 32
    # of a vae's latents, which differ by actuator [D]
    latent_dim: int = 4

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "width", "latent_dim")
        if not self.lags or list(self.lags) != sorted(set(self.lags)) or self.lags[0] != 0:
            raise ValueError(f"lags must rise from 0, got {list(self.lags)}")


@dataclass(frozen=True)
class ActuatorContract:
    """What a model was fitted to, and how it is to be used; actuator.json beside its weights."""

    kind: str
    rate_hz: float  # of its samples; it is refused at another
    actuators: list[str]
    channels: list[str]  # further inputs, with effort and velocity
    # effort is the reference torque of the log's own gains; otherwise it is the position error
    gains: bool
    input_scale: list[float]  # of effort, velocity and channels: inputs are divided by it
    # of the channels, subtracted before; 0 of effort and velocity, which have a sign
    input_mean: list[float]
    torque_scale: float  # [Nm]
    baseline: list[float]  # torque = a position error - b velocity + c, the best constant gains
    kp: float = 1.0  # most of the log was recorded with, in the log's unit of effort per rad
    kd: float = 0.0  # per rad/s
    limit: float = NO_LIMIT  # of the effort
    largest: float = NO_LIMIT  # torque [Nm] of the log, beyond which mlp, vae and conv do not go
    current_scale: float = 0.0  # [A]; 0 where the model predicts no current
    # as `baseline`; empty where it predicts no current
    current_baseline: list[float] = field(default_factory=list)
    net: ActuatorNetConfig = field(default_factory=ActuatorNetConfig)
    licence: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_available("kind", [self.kind], KINDS)
        if not len(self.input_scale) == len(self.input_mean) == 2 + len(self.channels):
            raise ValueError(
                "input_scale and input_mean need a number for effort, velocity and each channel"
            )
        scales = (*self.input_scale, self.torque_scale, self.rate_hz)
        if not all(0.0 < scale < math.inf for scale in scales):
            raise ValueError("scales and rate_hz must be finite and above 0")
        if self.kp < 0.0 or self.kd < 0.0 or not (self.limit > 0.0 and self.largest > 0.0):
            raise ValueError("kp and kd must be at least 0, limit and largest above 0")
        if len(self.baseline) != 3 or not self.actuators:
            raise ValueError("three numbers of baseline and the name of an actuator are needed")


def reference(
    error: Values,
    velocity: Values,
    kp: float,
    kd: float,
    limit: float,
    feedforward: Values | float = 0.0,
) -> Values:
    """The effort that firmware asks of its motor: kp error - kd velocity + feedforward, within the
    limit, of errors (...) [rad] and velocities (...) [rad/s].

    All in one unit of effort (Nm, a share of the supply), per rad and rad/s. kp = kd = 0 is torque
    control; kp = 0 and feedforward = kd times the commanded velocity is velocity control.
    """
    return (kp * error - kd * velocity + feedforward).clip(-limit, limit)


def inputs_of(trace: Trace, contract: ActuatorContract) -> Float32s:
    """A model's inputs (T, C) from a trace. Raises InputError where the trace lacks one of them."""
    where = f"{trace.recording}, {trace.actuator}"
    effort = trace.position_error
    if contract.gains:
        if not math.isfinite(trace.kp):
            raise InputError(f"{where} has no kp, which this model takes")
        feedforward = trace.others.get("feedforward", 0.0)
        effort = reference(effort, trace.velocity, *gains_of(trace), feedforward)
    if missing := [name for name in contract.channels if name not in trace.others]:
        raise InputError(f"{where} has no {', '.join(missing)}, which this model takes")
    columns = (effort, trace.velocity, *(trace.others[name] for name in contract.channels))
    return np.stack(columns, -1).astype(np.float32)


def gains_of(trace: Trace) -> tuple[float, float, float]:
    """kp, kd and limit of a trace; where it has none, kd is 0 and the limit `NO_LIMIT`."""
    kd = trace.kd if math.isfinite(trace.kd) else 0.0
    return trace.kp, kd, trace.limit if math.isfinite(trace.limit) else NO_LIMIT


class Memory(NamedTuple):
    """What a model remembers of N joints."""

    inputs: Tensor  # (N, H, C) scaled inputs of the latest samples, the oldest first
    kept: Tensor  # (N, H) its own outputs then, scaled; of a closed form (N, 2), see there
    latent: Tensor  # (N, d) what kind of actuator each is; (N, 0) but for a vae


class ActuatorModel(nn.Module, ABC):
    """A torque law with its contract; see `make`."""

    history: int  # samples that it looks at, the present one among them
    recursive = False  # whether it takes its own torques
    scale: Tensor
    mean: Tensor

    def __init__(self, contract: ActuatorContract):
        super().__init__()
        self.contract = contract
        self.register_buffer("scale", torch.tensor(contract.input_scale), persistent=False)
        self.register_buffer("mean", torch.tensor(contract.input_mean), persistent=False)
        self.latent_dim = contract.net.latent_dim if contract.kind == "vae" else 0

    def effort(self, error: Tensor, velocity: Tensor) -> Tensor:
        """The first input (...), from position errors (...) [rad] and velocities (...) [rad/s], by
        the gains that most of the log was recorded with; a model of position errors takes none."""
        c = self.contract
        return reference(error, velocity, c.kp, c.kd, c.limit) if c.gains else error

    def begin(self, inputs: Tensor, torque: Tensor | None = None) -> Memory:
        """The memory of joints that have long been as at their first sample, with the mean latents.

        Args:
          inputs: (N, C). torque: (N,) then [Nm]; None: 0, or a closed form's without friction.
        """
        n = len(inputs)
        before = self.scaled(inputs).unsqueeze(1).expand(n, self.history, -1)
        return Memory(before, self.first_kept(inputs, torque), inputs.new_zeros(n, self.latent_dim))

    def first_kept(self, inputs: Tensor, torque: Tensor | None) -> Tensor:
        """`Memory.kept` of arguments as `begin`."""
        first = inputs.new_zeros(len(inputs)) if torque is None else torque
        scaled = first / self.contract.torque_scale
        return scaled.unsqueeze(-1).expand(len(first), self.history)

    @property
    def armature(self) -> float:
        """The rotor's inertia at the joint [kg m^2], which the torques accelerate, too; 0 where it
        is not known."""
        return 0.0

    def scaled(self, inputs: Tensor) -> Tensor:
        """Inputs (..., C) as the networks take them."""
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
        seen = torch.cat((memory.inputs[:, 1:], scaled.unsqueeze(1)), 1)
        output, kept = self.law(seen, memory.kept, memory.latent)
        return output, Memory(seen, kept, memory.latent)

    def within(self, torque: Tensor) -> Tensor:
        """A network's scaled torques, at most the largest that it was fitted to; the gradient is
        that without this limit."""
        most = self.contract.largest / self.contract.torque_scale
        return torque.detach().clamp(-most, most) + (torque - torque.detach())

    @abstractmethod
    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled outputs (N, 1 or 2) and what is kept now, of inputs (N, H, C), the present one
        last, what was kept before, and latents (N, d)."""

    def rollout(self, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Torques (T, N) of samples (T, N, C), each on the model's own outputs before."""
        torques = []
        for sample in inputs:
            torque, memory = self.step(sample, memory)
            torques.append(torque)
        return torch.stack(torques), memory

    def in_words(self) -> str:
        """What it is, and how large."""
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
        """Raises InputError for a rate that is not the model's: its lags would mean other times."""
        if abs(rate_hz - self.contract.rate_hz) > 1e-3 * self.contract.rate_hz:
            rates = f"is of {self.contract.rate_hz:g} Hz, {rate_hz:g} Hz are asked for"
            raise InputError(
                f"the actuator model {rates}; npmp actuator fit rate_hz={rate_hz:g} makes one"
            )


class MLP(ActuatorModel):
    """Errors and velocities now and before, through three layers (Hwangbo et al. 2019); of a vae,
    with a latent of the actuator (Levine)."""

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
        # mean and log-std of the latents of the actuators that it was fitted to
        if self.latent_dim:
            # begun apart: latents that are all N(0, I) are noise, and the network ignores them
            mean = APART[0] * torch.randn(len(contract.actuators), self.latent_dim)
            self.codes = nn.Parameter(torch.stack((mean, torch.full_like(mean, APART[1])), 1))

    def answer(self, seen: Tensor, latent: Tensor) -> Tensor:
        """Scaled torques (N,) of scaled inputs at the lags, the latest first, (N, lags, C), and
        latents (N, d)."""
        return self.within(self.layers(torch.cat((seen.flatten(1), latent), -1)).squeeze(-1))

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`; it keeps nothing."""
        return self.answer(seen[:, self.at], latent).unsqueeze(-1), kept

    def draw_codes(self, actuators: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Latents (N, d) drawn around those of known actuators (N,), and the mean KL of these to
        N(0, I) per actuator."""
        if self.codes is None:
            return torch.zeros(len(actuators), 0), torch.zeros(())
        mean, log_std = self.codes.unbind(1)
        std = log_std.exp()
        kl = (0.5 * (mean.square() + std.square() - 1.0) - log_std).sum(-1).mean()
        noise = torch.randn(len(actuators), self.latent_dim, generator=generator)
        return mean[actuators] + std[actuators] * noise, kl

    @torch.no_grad()
    def standardize_codes(self) -> None:
        """Whiten the latent space, and undo that in the first layer: predictions stay, and samples
        of N(0, I) spread as the actuators do."""
        first = self.layers[0]
        assert self.codes is not None and isinstance(first, nn.Linear)  # for the type checker
        mean, log_std = self.codes.double().unbind(1)
        middle = mean.mean(0)
        var = log_std.exp().square().mean(0)
        covariance = (mean - middle).T @ (mean - middle) / len(mean) + var.diag()
        scale, turn = torch.linalg.eigh(covariance)
        # z' = (z - middle) into, z = z' back^T + middle
        into = turn / scale.sqrt()
        back = turn * scale.sqrt()
        weight = first.weight.double()[:, -self.latent_dim :]
        first.bias.add_((weight @ middle).float())
        first.weight[:, -self.latent_dim :] = (weight @ back).float()
        spread = log_std.exp().square() @ into.square()  # its variances along the new axes
        self.codes.copy_(torch.stack(((mean - middle) @ into, 0.5 * spread.log()), 1).float())


class Convolutions(ActuatorModel):
    """Strided causal convolutions over the last eight samples, each halving them; the output is
    added to the torque before (robot-NPMP). That torque is an input, too: without it a residual
    drifts."""

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
            self.head.weight *= 0.1  # at first the torque stays as it is

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`; the torque is a residual, the current is not."""
        x = torch.cat((seen, kept.unsqueeze(-1)), -1)
        for layer in self.pairs:
            x = nn.functional.softsign(layer(x.reshape(len(x), x.shape[1] // 2, -1)))
        output = self.head(x[:, 0])
        torque = self.within(kept[:, -1:] + output[:, :1])
        return torch.cat((torque, output[:, 1:]), -1), torch.cat((kept[:, 1:], torque), 1)


@dataclass(frozen=True)
class PDParameters:
    """A servo in closed form, SI units."""

    stiffness: float  # Nm per unit of effort
    damping: float  # Nm s/rad
    offset: float = 0.0  # Nm
    lag_s: float = 0.0  # of a first-order lag
    limit: float = 1e6  # torque at rest [Nm]
    limit_slope: float = 0.0  # fall of that torque with speed in its direction [Nm s/rad]
    coulomb: float = 0.0  # friction while it slides [Nm]
    stiction: float = 0.0  # more of it at rest [Nm]
    stribeck: float = 1.0  # speed over which that is lost [rad/s]
    load: float = 0.0  # friction while it slides per Nm of the motor
    load_at_rest: float = 0.0  # more of it at rest
    armature: float = 0.0  # the rotor's inertia at the joint [kg m^2]


class PD(ActuatorModel):
    """A servo in closed form: PD after a delay, through a first-order lag, within a torque limit
    that falls with speed as a DC motor's, less friction.

    Friction falls with speed (Stribeck) and grows with the motor's torque, as gears' does. A joint
    gives `GIVES` before it slides (an elasto-plastic bristle, Dupont et al. 2002), so friction
    holds any load within its limit. It is a function of the motion alone.
    """

    history = MOST_DELAY + 1
    delay: Tensor
    values: Tensor

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        self.register_buffer("delay", torch.zeros((), dtype=torch.long))  # samples
        self.register_buffer("values", torch.zeros(len(fields(PDParameters))))

    @property
    def parameters_of(self) -> PDParameters:
        """What was fitted."""
        return PDParameters(*self.values.tolist())

    def impossible(self) -> str:
        """Which of its numbers no servo has, "" for none."""
        p = self.parameters_of
        wrong = [name for name, value in asdict(replace(p, offset=0.0)).items() if value < 0.0]
        wrong += [name for name in ("limit", "stribeck") if getattr(p, name) == 0.0]
        return ", ".join(wrong + ["delay"] * (not 0 <= int(self.delay) <= MOST_DELAY))

    @property
    def armature(self) -> float:
        """As `ActuatorModel.armature`: known where it was fitted to a pendulum's motion."""
        return self.parameters_of.armature

    def first_kept(self, inputs: Tensor, torque: Tensor | None) -> Tensor:
        """As `ActuatorModel.first_kept`: (N, 2), the motor's torque before its limit, scaled, and
        the deflection of the friction, -1 to 1, which bears the difference to the torque."""
        p = self.parameters_of
        velocity = inputs[:, 1]
        motor = wanted(p, inputs[:, 0], velocity)
        deflection = (
            torch.zeros_like(motor) if torque is None else given_at(p, motor, velocity, torque)
        )
        return torch.stack((motor / self.contract.torque_scale, deflection), -1)

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        p = self.parameters_of
        scale = self.contract.torque_scale
        rate = self.contract.rate_hz
        inputs = seen[..., :2] * self.scale[:2] + self.mean[:2]
        effort = inputs[:, self.history - 1 - int(self.delay), 0]
        velocity = inputs[:, -1, 1]
        motor = kept[:, 0] * scale
        motor = motor + (wanted(p, effort, velocity) - motor) * float(share(p.lag_s, rate))
        deflection, borne = gives(kept[:, 1], velocity, rate)
        torque = delivered(p, motor, velocity, borne)
        torque = torque + scale * self.left(limited(p, motor, velocity), velocity, borne, torque)
        return (torque / scale).unsqueeze(-1), torch.stack((motor / scale, deflection), -1)

    def left(self, motor: Tensor, velocity: Tensor, borne: Tensor, torque: Tensor) -> Tensor:
        """What a network adds to the torque (N,), scaled, given the motor's within its limit [Nm],
        the velocity [rad/s], the share of friction that is borne, and the closed form's torque
        [Nm]; 0 without one."""
        return torch.zeros_like(torque)


class Hybrid(PD):
    """A servo in closed form, and a network that adds what this leaves of the torque. Its inputs
    are bounded by the closed form's limit; without biases it is an odd function, as a joint has no
    side."""

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        width = contract.net.width
        last = nn.Linear(contract.net.width, 1, bias=False)
        # at first the closed form alone
        nn.init.zeros_(last.weight)
        first, second = (nn.Linear(size, width, bias=False) for size in (4, width))
        self.layers = nn.Sequential(first, nn.Softsign(), second, nn.Softsign(), last)

    def left(self, motor: Tensor, velocity: Tensor, borne: Tensor, torque: Tensor) -> Tensor:
        scale = self.contract.torque_scale
        speed = FASTER * self.scale[1]
        inputs = torch.stack((motor / scale, velocity / speed, borne, torque / scale), -1)
        added: Tensor = self.layers(inputs)
        return added.squeeze(-1)


def wanted(p: PDParameters, effort: Values, velocity: Values) -> Values:
    """The torque (...) [Nm] that a servo's motor goes towards."""
    return p.stiffness * effort - p.damping * velocity + p.offset


def limited(p: PDParameters, motor: Values, velocity: Values) -> Values:
    """A motor's torque (...) [Nm] within its limit: most * tanh(motor / most)."""
    library: Any = torch if isinstance(motor, Tensor) else np
    most = (p.limit - p.limit_slope * velocity * library.sign(motor)).clip(1e-9, None)
    return most * library.tanh(motor / most)


def friction(p: PDParameters, motor: Values, velocity: Values) -> Values:
    """The most that friction bears (...) [Nm], of a motor's torque within its limit."""
    library: Any = torch if isinstance(motor, Tensor) else np
    at_rest = library.exp(-abs(velocity) / p.stribeck)
    of_load = p.load + p.load_at_rest * at_rest
    return p.coulomb + p.stiction * at_rest + of_load * abs(motor)


def gives(given: Values, velocity: Values, rate_hz: float) -> tuple[Values, Values]:
    """The deflection (...) of a joint's friction after another sample, as a share of `GIVES`, -1 or
    1 where it slides; and the share of `friction` that is borne, as by a spring and a damper."""
    after = (given + velocity / (rate_hz * GIVES)).clip(-1.0, 1.0)
    return after, (after + DAMPED_S * rate_hz * (after - given)).clip(-1.0, 1.0)


def given_at(p: PDParameters, motor: Values, velocity: Values, torque: Values) -> Values:
    """The deflection (...) of friction at which `delivered` comes nearest to a torque [Nm]."""
    within = limited(p, motor, velocity)
    return ((within - torque) / friction(p, within, velocity).clip(1e-9, None)).clip(-1.0, 1.0)


def delivered(p: PDParameters, motor: Values, velocity: Values, borne: Values) -> Values:
    """The torque (...) [Nm] behind limit and friction, of which a share (...) is borne."""
    within = limited(p, motor, velocity)
    return within - friction(p, within, velocity) * borne


def share(lag_s: Any, rate_hz: float) -> Any:
    """The share of its way that a first-order lag goes in a sample."""
    return 1.0 - np.exp(-1.0 / (np.maximum(lag_s, 1e-6) * rate_hz))


def make(contract: ActuatorContract) -> ActuatorModel:
    """The model of a contract, untrained."""
    kinds: dict[str, type[ActuatorModel]]
    kinds = {"pd": PD, "hybrid": Hybrid, "mlp": MLP, "conv": Convolutions, "vae": MLP}
    return kinds[contract.kind](contract)


def load(folder: str | Path, device: str | torch.device = "cpu") -> ActuatorModel:
    """Read a folder that `ActuatorModel.save` wrote. Nothing in it is executed.

    Raises:
      InputError: when a file is missing, damaged, of a newer version or does not fit the contract,
        and for a closed form of version 1, or of numbers that no servo has.
    """
    description = Path(folder) / "actuator.json"
    version = VERSION
    content = read_json(description) if description.exists() else None
    if isinstance(content, dict) and content.get("version") == 1:
        if content.get("kind") == "pd":
            raise InputError(
                f"'{description}' is a closed form of before its friction held loads; fit it again"
            )
        version = 1
    model = artifact.load(
        Path(folder), "actuator", "actuator model", SCHEMA, version, ActuatorContract, make
    )
    if isinstance(model, PD) and (wrong := model.impossible()):
        raise InputError(f"'{folder}': no servo has such a {wrong}")
    return model.to(device).eval()
