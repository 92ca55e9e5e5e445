"""Models of an actuator's torque. Each is a function of what a joint is asked and does, sample by sample, with a state
that it hands on, so that it runs beside a simulator for any number of joints at once.

Inputs (..., C) of a sample are `effort`, the position error [rad] times the stiffness of the position loop where the
log tells it, the velocity [rad/s], and the channels that the model was fitted with (voltage, temperature); the output
is a torque [Nm].
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp import artifact, ranges

SCHEMA, VERSION = "npmp.actuator", 1
KINDS = ("pd", "mlp", "conv", "vae")
MOST_DELAY = 8  # samples that a servo's answer may come late [D]
SLIDES = 0.05  # rad/s above which friction has its sign in full [D]
WINDOW = 8  # samples that the convolutions see [robot-NPMP]


@dataclass(frozen=True)
class ActuatorNetConfig:
    """Sizes of the learned models. Raises ValueError for values out of range."""

    lags: tuple[int, ...] = (0, 2, 4, 8)  # samples back that the MLP sees [Hwangbo: 0, 4, 8 at 400 Hz; D]
    width: int = 32  # units of a layer [Hwangbo; D for the convolutions]
    latent_dim: int = 4  # of what tells actuators apart, in a vae [D]

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
    channels: list[str]  # inputs besides effort and velocity
    gains: bool  # effort is position error times the log's kp; otherwise it is the position error
    input_scale: list[float]  # of effort, velocity and channels: inputs are divided by it
    input_mean: list[float]  # of the channels, subtracted before; 0 of effort and velocity, which have a sign
    torque_scale: float  # [Nm]
    baseline: list[float]  # torque = a effort - b velocity + c, the best constant gains
    net: ActuatorNetConfig = field(default_factory=ActuatorNetConfig)
    licence: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind '{self.kind}'; there are: {', '.join(KINDS)}")
        if len(self.input_scale) != 2 + len(self.channels) or len(self.input_mean) != len(self.input_scale):
            raise ValueError("input_scale and input_mean need a number for effort, velocity and each channel")
        if not all(0.0 < scale < math.inf for scale in (*self.input_scale, self.torque_scale, self.rate_hz)):
            raise ValueError("scales and rate_hz must be finite and above 0")


class Memory(NamedTuple):
    """What a model remembers of N joints."""

    inputs: Tensor  # (N, H, C) scaled inputs of the latest samples, the oldest first
    kept: Tensor  # (N, H) its own outputs then, scaled
    latent: Tensor  # (N, d) what kind of actuator each is; (N, 0) but for a vae


class ActuatorModel(nn.Module):
    """A torque law with its contract; see `make`."""

    history: int  # samples that it looks at, the present one among them

    def __init__(self, contract: ActuatorContract):
        super().__init__()
        self.contract = contract
        self.register_buffer("scale", torch.tensor(contract.input_scale), persistent=False)
        self.register_buffer("mean", torch.tensor(contract.input_mean), persistent=False)
        self.latent_dim = contract.net.latent_dim if contract.kind == "vae" else 0

    def begin(self, inputs: Tensor, torque: Tensor | None = None, *, generator: torch.Generator | None = None) -> Memory:
        """The memory of joints that have long been as at their first sample.

        Args:
          inputs: (N, C). torque: (N,) then [Nm]; None: none.
          generator: draws which actuator each joint is, of a vae; None: the mean one.
        """
        n = len(inputs)
        before = self.scaled(inputs).unsqueeze(1).expand(n, self.history, -1)
        put_out = inputs.new_zeros(n) if torque is None else torque / self.contract.torque_scale
        latent = inputs.new_zeros(n, self.latent_dim)
        if generator is not None and self.latent_dim:
            latent = torch.randn(n, self.latent_dim, generator=generator, device=inputs.device)
        return Memory(before, put_out.unsqueeze(-1).expand(n, self.history), latent)

    def scaled(self, inputs: Tensor) -> Tensor:
        """Inputs (..., C) as the networks take them."""
        return (inputs - self.mean) / self.scale

    def step(self, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The torques [Nm] of a sample (N, C), and the memory after it."""
        torque, memory = self.advance(self.scaled(inputs), memory)
        return torque * self.contract.torque_scale, memory

    def advance(self, scaled: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """`step` of scaled inputs (N, C), to scaled torques (N,)."""
        seen = torch.cat((memory.inputs[:, 1:], scaled.unsqueeze(1)), 1)
        torque, kept = self.law(seen, memory.kept, memory.latent)
        after = torch.cat((memory.kept[:, 1:], kept.unsqueeze(-1)), 1)
        return torque, Memory(seen, after, memory.latent)

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """The scaled torque (N,) after inputs (N, H, C), the present one last, outputs (N, H) before it, and latents
        (N, d); and what is kept of it as the latest output."""
        raise NotImplementedError

    def rollout(self, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Torques (T, N) of samples (T, N, C), each on the model's own outputs before."""
        torques = []
        for sample in inputs:
            torque, memory = self.step(sample, memory)
            torques.append(torque)
        return torch.stack(torques), memory

    def save(self, folder: Path) -> None:
        """Write FOLDER/actuator.json and actuator.safetensors. Raises OSError."""
        artifact.write(folder, "actuator", SCHEMA, VERSION, asdict(self.contract), self.state_dict())

    def check_rate(self, rate_hz: float) -> None:
        """Raises InputError for a rate that is not the model's: its lags would mean other times."""
        if abs(rate_hz - self.contract.rate_hz) > 1e-3 * self.contract.rate_hz:
            raise InputError(f"the actuator model is of {self.contract.rate_hz:g} Hz, this is {rate_hz:g} Hz")


class MLP(ActuatorModel):
    """Errors and velocities now and before, through three layers (Hwangbo et al. 2019); of a vae, with a latent of the
    actuator (Levine)."""

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

        # of the actuators that it was fitted to, mean and log-std of their latents
        self.codes = nn.Parameter(torch.zeros(len(contract.actuators), 2, self.latent_dim)) if self.latent_dim else None

    def answer(self, seen: Tensor, latent: Tensor) -> Tensor:
        """Scaled torques (N,) of scaled inputs at the lags, the latest first, (N, lags, C), and latents (N, d)."""
        return self.layers(torch.cat((seen.flatten(1), latent), -1)).squeeze(-1)

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`."""
        torque = self.answer(seen[:, self.at], latent)
        return torque, torque

    def draw_codes(self, actuators: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Latents (N, d) drawn around those of known actuators (N,), and the mean KL of these to N(0, I) per
        actuator."""
        if self.codes is None:
            return torch.zeros(len(actuators), 0), torch.zeros(())
        mean, log_std = self.codes.unbind(1)
        std = log_std.exp()
        kl = (0.5 * (mean.square() + std.square() - 1.0) - log_std).sum(-1).mean()
        noise = torch.randn(len(actuators), self.latent_dim, generator=generator)
        return mean[actuators] + std[actuators] * noise, kl


class Convolutions(ActuatorModel):
    """Four layers over the last eight samples, each halving them; what comes out is added to the torque before
    (robot-NPMP). Besides the inputs they see that torque: without it a residual drifts."""

    history = WINDOW

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        width, channels = contract.net.width, len(contract.input_scale) + 1
        sizes = [(channels, width), (width, width), (width, width)]
        self.convolutions = nn.ModuleList(nn.Conv1d(a, b, kernel_size=2, stride=2) for a, b in sizes)
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            self.head.weight *= 0.1  # at first the torque stays as it is

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`."""
        x = torch.cat((seen, kept.unsqueeze(-1)), -1).transpose(1, 2)
        for layer in self.convolutions:
            x = nn.functional.softsign(layer(x))
        torque = kept[:, -1] + self.head(x.squeeze(-1)).squeeze(-1)
        return torque, torque


@dataclass(frozen=True)
class PDParameters:
    """Of a servo in closed form, SI units."""

    stiffness: float  # Nm per unit of effort
    damping: float  # Nm s/rad
    offset: float = 0.0  # Nm
    lag_s: float = 0.0  # of a first-order lag
    limit: float = 1e6  # torque at rest [Nm]
    limit_slope: float = 0.0  # by which it falls with speed [Nm s/rad]
    coulomb: float = 0.0  # friction while it slides [Nm]
    stiction: float = 0.0  # more of it at rest [Nm]
    stribeck: float = 1.0  # speed over which that is lost [rad/s]


class PD(ActuatorModel):
    """A servo in closed form: PD after a delay, through a first-order lag, within a torque that falls with speed, less
    friction that falls from its value at rest (Stribeck)."""

    history = MOST_DELAY + 1

    def __init__(self, contract: ActuatorContract):
        super().__init__(contract)
        self.register_buffer("delay", torch.zeros((), dtype=torch.long))  # samples
        self.register_buffer("values", torch.zeros(len(fields(PDParameters))))

    def law(self, seen: Tensor, kept: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """As `ActuatorModel.law`; what it keeps is the torque before limit and friction."""
        p, scale = PDParameters(*self.values.tolist()), self.contract.torque_scale
        inputs = seen * self.scale + self.mean
        asked, velocity = inputs[:, self.history - 1 - int(self.delay), 0], inputs[:, -1, 1]
        motor = kept[:, -1] * scale
        motor = motor + share(p.lag_s, self.contract.rate_hz) * (p.stiffness * asked - p.damping * velocity + p.offset - motor)
        limit = (p.limit - p.limit_slope * velocity.abs()).clamp(min=0.0)
        friction = (p.coulomb + p.stiction * torch.exp(-((velocity / p.stribeck) ** 2))) * torch.tanh(velocity / SLIDES)
        return (torch.minimum(torch.maximum(motor, -limit), limit) - friction) / scale, motor / scale


def share(lag_s: float, rate_hz: float) -> float:
    """How much of the way a first-order lag goes in a sample."""
    return 1.0 - math.exp(-1.0 / (max(lag_s, 1e-6) * rate_hz))


MODELS: dict[str, type[ActuatorModel]] = {"pd": PD, "mlp": MLP, "conv": Convolutions, "vae": MLP}


def make(contract: ActuatorContract) -> ActuatorModel:
    """The model of a contract, untrained."""
    return MODELS[contract.kind](contract)


def load(folder: str | Path, device: str | torch.device = "cpu") -> ActuatorModel:
    """Read a folder that `ActuatorModel.save` wrote. Nothing in it is executed.

    Raises:
      InputError: when a file is missing, damaged, of a newer version or does not fit the contract.
    """
    model = artifact.load(Path(folder), "actuator", "actuator model", SCHEMA, VERSION, ActuatorContract, make)
    return model.to(device).eval()
