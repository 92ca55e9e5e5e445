"""The skill module: encoder, prior, decoder, and their contract.

On disk a module is a folder of `module.safetensors` (weights and normalizers) and `module.json`
(the contract). Loading executes no code from it. Weights are stored as float32 or, at half the
size, float16; in memory they are float32.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError, check_available
from npmp.core import artifact, ranges
from npmp.core.gaussian import Gaussian
from npmp.core.memory_checks import require_context
from npmp.core.settings import from_mapping
from npmp.envs.features import (
    ReferenceFeatures,
    context_size,
    encoder_context,
    proprioception,
    proprioception_layout,
)
from npmp.envs.policy import Observation
from npmp.envs.reference import Reference
from npmp.envs.robot_batch import ACCELEROMETERS, HOLDS
from npmp.robots import Robot
from npmp.skills import priors
from npmp.skills.nets import Decoder, DecoderState, Encoder, JointDecoder, NetConfig
from npmp.skills.nets.command_decoder import CommandDecoder
from npmp.skills.normalizer import Normalizer
from npmp.skills.unroll import unroll_lstm

SCHEMA = "npmp-skill"
VERSION = 1
# from latents to joint targets: learned skills, a scale only, or a walking policy
DECODERS = ("lstm", "joints", "commands")
_WIDTHS = ("encoder_width", "decoder_width", "lstm_width")
# dtypes of the networks' weights on disk
STORED_AS = {"float32": torch.float32, "float16": torch.float16}
# fields of the contract that must equal the robot's
SETTLED = (
    *("robot", "joint_names", "model_sha256", "home_pose", "kp", "kd", "torque_limit"),
    *("control_rate_hz", "physics_rate_hz", "observation"),
)


@dataclass(frozen=True)
class SkillContract:
    """Everything needed to run a module: module.json without schema and version."""

    robot: str
    model_sha256: str
    joint_names: list[str]
    home_pose: list[float]  # [rad]; setpoint = home_pose + action
    kp: list[float]  # [Nm/rad]
    kd: list[float]  # [Nm s/rad]
    torque_limit: list[float]  # [Nm]
    control_rate_hz: float
    physics_rate_hz: float
    observation: list[tuple[str, int]]  # [name, width] in order, before normalization
    context_size: int  # width of the encoder's features, without the previous latent
    context_horizon: int  # future reference frames that the encoder observes
    net: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    weights_dtype: str = "float32"  # dtype of the networks' weights on disk
    decoder: str = "lstm"  # one of `DECODERS`
    walker: dict[str, Any] = field(default_factory=dict)  # settings of a `CommandDecoder`

    def __post_init__(self) -> None:
        ranges.one_of(self, "decoder", DECODERS)
        sizes = (self.context_size, *(width for _, width in self.observation))
        if not self.joint_names or min(sizes) < 1:
            raise ValueError(
                "joint_names must not be empty, context_size and observation widths must be above 0"
            )
        if not 1 <= self.context_horizon <= 10_000:
            raise ValueError(f"context_horizon must lie in 1 to 10,000, got {self.context_horizon}")
        for key, choices in (("hold", HOLDS), ("accelerometer", ACCELEROMETERS)):
            value = self.training.get(key, choices[0])
            if isinstance(value, str) and value not in choices:
                raise ValueError(f"{key} must be one of {', '.join(choices)}; got {value!r:.40}")
        ranges.one_of(self, "weights_dtype", STORED_AS)

    @staticmethod
    def for_robot(
        robot: Robot, net: NetConfig, *, context_size: int, context_horizon: int
    ) -> SkillContract:
        """The contract of a module for a robot, with its rates, gains and home pose."""
        return SkillContract(
            robot=robot.name,
            model_sha256=robot.model_sha256,
            joint_names=list(robot.joint_names),
            home_pose=robot.home_joints.tolist(),
            kp=robot.kp.tolist(),
            kd=robot.kd.tolist(),
            torque_limit=robot.torque_limit.tolist(),
            control_rate_hz=float(robot.control_rate_hz),
            physics_rate_hz=float(robot.physics_rate_hz),
            observation=list(proprioception_layout(len(robot.joint_names))),
            context_size=context_size,
            context_horizon=context_horizon,
            net=asdict(net),
        )


class SkillModule(nn.Module):
    """Encoder, prior and decoder of one robot's motor skills.

    The decoder (`decode`) is reused and deployed; the encoder (`encode`) needs a simulator's true
    state and a reference.
    """

    def __init__(self, contract: SkillContract):
        super().__init__()
        self.contract = contract
        self.net = from_mapping(NetConfig, contract.net, at="net in the module's contract")
        self.robot = contract.robot  # name of the robot that it was trained for
        self.latent_dim = self.net.latent_dim
        home = torch.tensor(contract.home_pose)
        self.prior = priors.make(
            self.net.prior, self.net.settings_of_prior, self.net.latent_dim, home
        )
        observations = sum(width for _, width in contract.observation)
        actions = len(contract.joint_names)
        context = contract.context_size
        self.encoder = Encoder(context, self.net, self.prior.std)
        self.decoder: Decoder | JointDecoder | CommandDecoder
        if contract.decoder == "joints":
            self.decoder = JointDecoder(actions, self.net)
        elif contract.decoder == "commands":
            self.decoder = CommandDecoder(observations, actions, contract.walker)
        else:
            self.decoder = Decoder(observations, actions, self.net)
        self.context_scale = Normalizer(context)
        self.observation_scale = Normalizer(observations)
        # per dimension, the 99 % quantile of |z| in imitation: the limit of high-level policies
        self.latent_range: Tensor
        self.register_buffer("latent_range", self.prior.bound.clone())

    @staticmethod
    def for_reference(
        robot: Robot, net: NetConfig, reference: Reference, features: ReferenceFeatures
    ) -> SkillModule:
        """An untrained module with input scales fitted to a reference, fixed from then on."""
        require_context(reference.num_frames, features.size, net.encoder_width)
        home = torch.tensor(robot.home_joints, dtype=torch.float32, device=reference.start.device)
        frames = torch.arange(reference.num_frames, device=home.device)
        state = reference.state(frames)
        last = reference.last_frame(reference.clip_of(frames))
        context = encoder_context(features, state, frames, last, home)
        contract = SkillContract.for_robot(
            robot, net, context_size=context.shape[-1], context_horizon=features.horizon
        )
        skill = SkillModule(contract)
        skill.context_scale.fit(context, 0.1)
        skill.observation_scale.fit(proprioception(state, home), 0.1)
        skill.prior.fit(skill.prior.observe(state, context[:, :0]))
        return skill

    def in_joint_space(self) -> SkillModule:
        """A module without skills: latents are joint targets, the prior is white, input scales are
        this module's. A policy over it learns from scratch by the same code."""
        return self.without_skills(len(self.contract.joint_names), decoder="joints")

    def without_skills(self, latent_dim: int, **contract: Any) -> SkillModule:
        """A module of the same robot, hold and accelerometer, with input scales of this one; other
        weights are zero. contract: fields to change, e.g. the decoder."""
        training = self.contract.training
        sizes: dict[str, Any] = dict.fromkeys(_WIDTHS, 1)
        net = NetConfig(latent_dim=latent_dim, alpha=0.0, **sizes)
        keys = ("hold", "accelerometer", "command_range")
        kept = {key: training[key] for key in keys if key in training}
        plain = SkillModule(replace(self.contract, net=asdict(net), training=kept, **contract))
        # the encoder is not used, but part of a module's file
        for parameter in plain.parameters():
            nn.init.zeros_(parameter)
        plain.context_scale.load_state_dict(self.context_scale.state_dict())
        plain.observation_scale.load_state_dict(self.observation_scale.state_dict())
        return plain.to(self.latent_range.device)

    @property
    def hold(self) -> str:
        """The hold of setpoints in training, "first_order" or "zero_order"."""
        return str(self.contract.training.get("hold", "zero_order"))

    @property
    def accelerometer(self) -> str:
        """The accelerometer in training, "imu" or "root" (of older modules)."""
        return str(self.contract.training.get("accelerometer", "root"))

    def initial_state(self, n: int) -> DecoderState:
        """Zero memory of n robots."""
        return self.decoder.initial_state(n)

    def encode(self, context: Tensor, z_before: Tensor) -> Gaussian:
        """Encoder features (n, context_size), z_{t-1} (n, d) -> the deviation N(mu, sigma^2) of z_t
        from the prior's mean, eq. 3."""
        return self.encoder(self.context_scale(context), z_before)

    def posterior(self, context: Tensor, z_before: Tensor, observed: Tensor) -> Gaussian:
        """The encoder's distribution of z_t, eq. 3: the prior's mean plus the deviation.

        observed: (n, f) from `Prior.observe`.
        """
        mu, sigma = self.encode(context, z_before)
        return Gaussian(self.prior.step(z_before, observed).mean + mu, sigma)

    def decode(
        self, z: Tensor, proprioception: Tensor, state: DecoderState
    ) -> tuple[Tensor, DecoderState]:
        """Latent (n, d), unscaled proprioception (n, o) -> action (n, nu) [rad], memory; setpoint =
        home_pose + action."""
        return self.decoder(z, self.observation_scale(proprioception), state)

    def step(self, observation: Observation, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """`decode` of the upper policy's latent, `Observation.task`."""
        return self.decode(observation.task, observation.proprioception, state)

    def unroll(
        self, z: Tensor, proprioception: Tensor, state: DecoderState, resets: Tensor
    ) -> tuple[Tensor, DecoderState]:
        """`decode` over T steps: z [T, B, d], proprioception [T, B, o], state [B, ...] before the
        first, resets [T, B] bool -> actions [T, B, nu] in rad, the state after the last.

        Only the LSTM, which does not depend on latents, is computed step by step.
        """
        decoder = self.decoder
        # other decoders are not unrolled
        assert isinstance(decoder, Decoder)
        x, memorized = decoder.inputs(self.observation_scale(proprioception))
        hidden, last = unroll_lstm(decoder.lstm, memorized, (state.hidden, state.cell), resets)
        return decoder.output(hidden, x, z), DecoderState(*last)

    def save(
        self, folder: str | Path, *, training: dict[str, Any] | None = None, dtype: str = "float32"
    ) -> None:
        """Write the folder; each file is written atomically.

        Args:
          training: the training record; None: the contract's.
          dtype: of the networks' weights on disk, float32 or float16 (11 significant bits);
            normalizers and `latent_range` stay float32.

        Raises:
          OSError: when the folder cannot be written; InputError for an unknown dtype or a weight
            beyond its range.
        """
        check_available("dtype", [dtype], STORED_AS)
        content = asdict(self.contract) | {"weights_dtype": dtype}
        content |= {} if training is None else {"training": training}
        tensors = self.state_dict()
        learned = dict(self.named_parameters())
        for name in tensors:
            if name in learned or name.startswith("decoder."):
                tensors[name] = tensors[name].to(STORED_AS[dtype])
                if not bool(torch.isfinite(tensors[name]).all()):
                    raise InputError(
                        f"weights '{name}' exceed the range of {dtype}; use dtype=float32"
                    )
        artifact.write(Path(folder), "module", SCHEMA, VERSION, content, tensors)

    @staticmethod
    def load(folder: str | Path, device: str | torch.device = "cpu") -> SkillModule:
        """Load a module folder, without executing code from it. Weights become float32.

        Raises:
          InputError: when a file is missing, damaged, of a newer version or does not fit the
            contract.
        """
        module = artifact.load(
            Path(folder), "module", "skill module", SCHEMA, VERSION, SkillContract, SkillModule
        )
        return module.to(device).eval()

    def check_robot(self, robot: Robot) -> None:
        """Check that the module is for a robot.

        Raises:
          InputError: naming the field that differs.
        """
        contract = asdict(self.contract)
        context = {key: contract[key] for key in ("context_size", "context_horizon")}
        expected = asdict(SkillContract.for_robot(robot, self.net, **context))
        for key in SETTLED:
            if contract[key] != expected[key]:
                raise InputError(
                    f"the module's {key} is {contract[key]},"
                    f" but for '{robot.name}' it is {expected[key]}"
                )

    def check_encoder(self, robot: Robot) -> None:
        """Check that the encoder's features are those of a robot; only imitation needs it.

        Raises:
          InputError: naming both sizes; for a module without an encoder.
        """
        if self.contract.decoder != "lstm":
            raise InputError(
                f"the module has no encoder: its latents are {self.contract.decoder}; expected a "
                "module trained by imitation"
            )
        horizon = self.contract.context_horizon
        size = self.contract.context_size
        expected = context_size(robot, horizon)
        if size != expected:
            raise InputError(
                f"the module's context_size is {size}, but {horizon} frames ahead make "
                f"{expected} for '{robot.name}'"
            )
