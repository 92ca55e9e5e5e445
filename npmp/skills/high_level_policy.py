"""High-level policies, which command the latents of a skill module, and their contract.

On disk a policy is a folder of `policy.safetensors` (weights and input scales) and `policy.json`
(the contract). Loading executes no code from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from mocap_data.input_files import regular_file
from npmp.core import artifact
from npmp.core.gaussian import Gaussian
from npmp.core.settings import from_mapping
from npmp.core.tree import Tree
from npmp.envs.policy import Observation
from npmp.envs.task import Task
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.composition import Composition, Unrolled, over
from npmp.skills.nets.high_level import HighLevelConfig, HighLevelNet
from npmp.skills.nets.skill_nets import DecoderState
from npmp.skills.normalizer import Normalizer
from npmp.skills.prior import AR1, Prior
from npmp.skills.skill_module import SkillModule
from npmp.skills.unroll import unroll_lstm
from npmp.tasks.teachers import scripts
from npmp.tasks.teachers.scripts import Script

SCHEMA = "npmp-policy"
VERSION = 2  # version 1 had no gain on m


@dataclass(frozen=True)
class PolicyContract:
    """Everything needed to run a policy: policy.json without schema and version."""

    robot: str
    task: str  # e.g. "walk"
    # checksum of module.safetensors of the commanded module; "": never saved
    module_sha256: str
    latent_dim: int
    alpha: float  # alpha of the AR(1) prior; initial value of theta
    # the module's proprioception before normalization, each [name, width], in order
    observation: list[tuple[str, int]]
    command: list[str]  # names of the task's inputs
    command_range: list[list[float]]  # [low, high] of each, as trained
    net: dict[str, Any]
    latent_bound: list[float]  # limit on |m| per dimension
    # name and settings of an upper script, from the task's inputs to commands
    script: dict[str, Any] = field(default_factory=dict)
    # names of the inputs after the command: `Task.extra_inputs`
    extra_inputs: list[str] = field(default_factory=list)
    clock_s: float | None = None  # period of the clock among them [s]
    camera: dict[str, Any] | None = None  # `CameraConfig` of the depths among them
    versions: dict[str, str] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(width < 1 for _, width in self.observation):
            raise ValueError(f"observation widths must be above 0, got {self.observation}")
        pairs = all(len(pair) == 2 and pair[0] <= pair[1] for pair in self.command_range)
        if not pairs or len(self.command_range) != len(self.command):
            raise ValueError(
                f"command_range needs [low, high] for each of {', '.join(self.command)}"
            )

    def check_task(self, task: Task | type[Task]) -> None:
        """Check that a task takes the policy. Raises: InputError naming both tasks."""
        accepted = (task.name, *task.policies_of)
        if self.task not in accepted:
            raise InputError(
                f"the policy was trained for task '{self.task}'; task={task.name} accepts "
                f"policies for {', '.join(accepted)}"
            )

    @property
    def sees_ground(self) -> bool:
        """Whether it observes heights of the ground."""
        return any(name.startswith("ground_") for name in self.extra_inputs)

    @property
    def input_settings(self) -> dict[str, Any]:
        """Settings from which `Task.resolve` makes a task with the policy's inputs."""
        names = ("command", "command_range", "clock_s", "sees_ground", "camera")
        return {name: getattr(self, name) for name in names}


def module_sha256(module: str | Path | SkillModule) -> str:
    """SHA-256 of a module's weights file, by which a policy identifies its module.

    Raises:
      InputError: for a folder without weights.
    """
    if isinstance(module, SkillModule):
        with TemporaryDirectory() as folder:
            module.save(folder)
            return module_sha256(folder)
    path = Path(module) / "module.safetensors"
    if not path.exists():
        raise InputError(f"no skill module in '{module}': 'module.safetensors' is missing")
    return artifact.sha256(regular_file(path))


class HighLevelPolicy(nn.Module):
    """Distribution of z_t from proprioception, the task's inputs and z_{t-1}.

    `step` is one control step; calling the policy unrolls it over time, for `npmp.learning.rl`.
    """

    def __init__(self, contract: PolicyContract):
        """Raises: InputError for a contract with invalid sizes."""
        super().__init__()
        self.contract = contract
        self.latent_dim = contract.latent_dim
        self.regularize(AR1(contract.latent_dim, contract.alpha))
        sizes = from_mapping(HighLevelConfig, contract.net, at="net in the policy's contract")
        observations = sum(width for _, width in contract.observation)
        self.script: Script | None = None
        inputs = len(contract.command) + len(contract.extra_inputs)
        scaled = inputs
        if contract.script:
            settings = dict(contract.script)
            # older dribbling policies do not name their script
            settings.setdefault("name", "dribble")
            self.script = scripts.make(settings, at="script in the policy's contract")
            scaled = len(self.script.commands)
            inputs = scaled + self.script.feature_width
        try:
            self.net = HighLevelNet(
                observations + inputs,
                contract.latent_dim,
                contract.alpha,
                sizes,
                bound=contract.latent_bound,
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"network settings in the policy's contract: {error}") from error
        self.observation_scale = Normalizer(observations)
        self.command_scale = Normalizer(scaled)

    @staticmethod
    def for_task(
        skill: SkillModule,
        task: Task,
        *,
        net: HighLevelConfig | None = None,
        module: str = "",
        bound: list[float] | None = None,
    ) -> HighLevelPolicy:
        """An untrained policy of a task over a module's latents, with the module's input scales.

        Args:
          net: sizes, initial values, and alpha of another prior than the module's.
          module: `module_sha256` of the module's folder.
          bound: limit on |m| per latent dimension; None: the module's `latent_range`.
        """
        net = net or HighLevelConfig()
        ranges = list(task.inputs.values())
        policy = HighLevelPolicy(
            PolicyContract(
                robot=skill.robot,
                task=task.name,
                module_sha256=module,
                latent_dim=skill.latent_dim,
                alpha=skill.prior.alpha if net.alpha is None else net.alpha,
                observation=skill.contract.observation,
                command=list(task.inputs),
                command_range=[list(pair) for pair in ranges],
                extra_inputs=list(task.extra_inputs),
                clock_s=task.clock_s,
                camera=None if task.camera is None else dict(task.camera),
                net=asdict(net),
                latent_bound=bound or skill.latent_range.tolist(),
            )
        )
        policy.observation_scale.load_state_dict(skill.observation_scale.state_dict())
        scale = _scale_of({**task.inputs, **task.scales, **task.extra_inputs})
        policy.command_scale.load_state_dict(scale)
        return policy

    def for_other_task(self, task: Task) -> HighLevelPolicy:
        """A copy with the same weights and input scales, for another task.

        The task has the same inputs, or a script that outputs this policy's commands (`below`). For
        a policy that already has a script it is replaced by the task's.

        Raises:
          InputError: for a task with other inputs.
        """
        changes: dict[str, Any] = {}
        if task.script is not None:
            if self._takes_commands_of(task.script):
                return self.below(task.script, task)
            if self.script is not None:
                changes = {"script": scripts.settings_of(task.script)}
        self._check_inputs(task)
        return self._copy_for(task, self.state_dict(), clock_s=task.clock_s, **changes)

    def with_sensors_of(self, task: Task) -> HighLevelPolicy:
        """A copy that also observes the task's `extra_inputs`, with weights of zero at first. For a
        policy that observes some already, or has a script, as `for_other_task`.

        Raises:
          InputError: for a task with other commands.
        """
        c = self.contract
        if c.extra_inputs or c.script or c.command != list(task.inputs):
            return self.for_other_task(task)
        weights = self.state_dict()
        before = sum(width for _, width in c.observation) + len(c.command)
        self._widen(weights, before, len(task.extra_inputs))
        for name, values in _scale_of(task.extra_inputs).items():
            key = f"command_scale.{name}"
            weights[key] = torch.cat((weights[key], values.to(weights[key])))
        return self._copy_for(
            task,
            weights,
            extra_inputs=list(task.extra_inputs),
            clock_s=task.clock_s,
            camera=None if task.camera is None else dict(task.camera),
        )

    @staticmethod
    def _widen(weights: dict[str, Any], at: int, count: int) -> None:
        """Insert `count` inputs with weights of zero at a column of the first layer."""
        layer = weights["net.norm.0.weight"]
        zeros = layer.new_zeros(len(layer), count)
        weights["net.norm.0.weight"] = torch.cat((layer[:, :at], zeros, layer[:, at:]), 1)

    def _copy_for(self, task: Task, weights: dict[str, Any], **contract: Any) -> HighLevelPolicy:
        """A policy of a task with these weights and these changes of the contract."""
        command_range = [list(pair) for pair in task.inputs.values()]
        changes: dict[str, Any] = {"task": task.name, "command_range": command_range, **contract}
        changed = replace(self.contract, versions={}, training={}, **changes)
        policy = HighLevelPolicy(changed).to(self.observation_scale.mean.device)
        policy.load_state_dict(weights)
        return policy

    def _takes_commands_of(self, script: Script) -> bool:
        """Whether its inputs are the commands of a script."""
        return tuple(self.contract.command) == script.commands

    def below(self, script: Script, task: Task) -> HighLevelPolicy:
        """A copy commanded by a script, for a task with the script's inputs. Weights of the
        script's `features` are zero at first.

        Raises:
          InputError: for a policy with other inputs than the script's commands.
        """
        if self.contract.extra_inputs:
            raise InputError(
                f"the policy observes {self.contract.extra_inputs[0]}, ... after its command;"
                f" script '{script.name}' outputs only commands"
            )
        if not self._takes_commands_of(script):
            raise InputError(
                f"script '{script.name}' commands {', '.join(script.commands)}; this policy of "
                f"task '{self.contract.task}' observes {_listed(self.contract.command)}"
            )
        weights = self.state_dict()
        inputs = sum(width for _, width in self.contract.observation) + len(script.commands)
        self._widen(weights, inputs, script.feature_width)
        settings = scripts.settings_of(script)
        return self._copy_for(task, weights, command=list(task.inputs), script=settings)

    @property
    def prior(self) -> Prior:
        """The prior towards which it is regularized; not part of its weights."""
        return self._prior[0]

    def regularize(self, prior: Prior) -> None:
        """Set the prior towards which it is regularized."""
        # in a tuple, so that it is not a submodule
        self._prior = (prior,)

    def regularize_towards(self, skill: SkillModule) -> None:
        """Regularize it towards the module's prior, unless its settings name an AR(1) prior."""
        if self.net.config.alpha is None:
            self.regularize(skill.prior)

    @property
    def weights(self) -> nn.Module:
        """The trained network: all of it."""
        return self

    def initial_state(self, n: int) -> DecoderState:
        """The state at the start of n episodes."""
        return self.net.initial_state(n)

    def inputs(self, observation: Observation) -> Tensor:
        """The network's scaled inputs (..., o + c): proprioception, then the task's inputs, or a
        script's commands and features."""
        scaled = self.observation_scale(observation.proprioception)
        task = observation.task
        if self.script is None:
            return torch.cat((scaled, self.command_scale(task)), -1)
        command, _ = self.script.step(observation, ())
        return torch.cat((scaled, self.command_scale(command), self.script.features(task)), -1)

    def step(self, observation: Observation, state: DecoderState) -> tuple[Gaussian, DecoderState]:
        """The distribution of z_t of n robots, and the new state."""
        return self.net(self.inputs(observation), observation.z_before, state)

    def forward(
        self, observations: Observation, state: DecoderState, resets: Tensor
    ) -> tuple[Tensor, Tensor, DecoderState, Tensor]:
        """`unroll`, for a learner. Returns mean and std of the latents [T, B, d], the state after
        the last step, the KL to `prior` [T, B] in nats."""
        unrolled = self.unroll(observations, None, state, resets)
        return *unrolled.latents, unrolled.state, unrolled.kl

    def unroll(
        self, observations: Observation, z: Tree, state: DecoderState, resets: Tensor
    ) -> Unrolled:
        """`latents` over time and their KL; z of the result is the mean.

        z: not used; `Observation.z_before` has the previous latents.
        """
        latents, last = self.latents(observations, state, resets)
        kl = self.prior.kl(latents, observations.z_before, observations.prior)
        return Unrolled(latents, latents.mean, last, kl)

    def latents(
        self, observations: Observation, state: DecoderState, resets: Tensor
    ) -> tuple[Gaussian, DecoderState]:
        """The distributions of z_t over T steps, [T, B, d], and the state after the last.

        Args:
          observations: [T, B, ...]. state: before the first step, [B, ...].
          resets: [T, B] bool, the step is an episode's first, with zero memory.
        """
        x = self.net.inputs(self.inputs(observations), observations.z_before)
        hidden, last = unroll_lstm(self.net.memory, x, (state.hidden, state.cell), resets)
        return self.net.output(x, hidden, observations.z_before), DecoderState(*last)

    def save(self, folder: str | Path, *, training: dict[str, Any] | None = None) -> None:
        """Write the folder; each file is written atomically.

        Raises:
          OSError: when the folder cannot be written.
        """
        content = asdict(self.contract) | ({} if training is None else {"training": training})
        artifact.write(Path(folder), "policy", SCHEMA, VERSION, content, self.state_dict())

    @staticmethod
    def load(
        folder: str | Path, *, module: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> HighLevelPolicy:
        """Load a policy folder, without executing code from it.

        Args:
          module: the folder of the skill module that it commands, to check the checksum.

        Raises:
          InputError: when a file is missing, damaged, of another version, does not fit the
            contract, or belongs to another module.
        """
        policy = artifact.load(
            Path(folder),
            "policy",
            "policy",
            SCHEMA,
            VERSION,
            PolicyContract,
            HighLevelPolicy,
            renamed={"besides": "extra_inputs", "commander": "script"},
        )
        if module is not None:
            policy.check_module(module)
        return policy.to(device).eval()

    def check_module(self, folder: str | Path) -> None:
        """Check the checksum of the module's weights.

        Raises:
          InputError: naming both checksums.
        """
        checksum = module_sha256(folder)
        if checksum != self.contract.module_sha256:
            expected = self.contract.module_sha256
            raise InputError(
                f"the policy commands another skill module than '{folder}'"
                f" (sha256 {expected[:12] or 'unknown'}..., got {checksum[:12]}...)"
            )

    def check_task(self, task: Task | type[Task]) -> None:
        """Check that a task has the inputs that this policy was trained with.

        Raises:
          InputError: naming both tasks, or both lists of inputs.
        """
        contract = self.contract
        contract.check_task(task)
        if isinstance(task, type):
            return
        self._check_inputs(task)
        for name in ("clock_s", "camera"):
            if (value := getattr(contract, name)) != (task_value := getattr(task, name)):
                raise InputError(f"the policy's {name} is {value}, the task's {task_value}")

    def _check_inputs(self, task: Task) -> None:
        observed = [*self.contract.command, *self.contract.extra_inputs]
        inputs = [*task.inputs, *task.extra_inputs]
        if observed != inputs:
            raise InputError(
                f"the policy observes {_listed(observed)}; task '{task.name}' has {_listed(inputs)}"
            )


def _scale_of(ranges: Mapping[str, tuple[float, float]]) -> dict[str, Tensor]:
    """The state of a `Normalizer` of inputs within ranges."""
    low, high = torch.tensor([list(pair) for pair in ranges.values()]).reshape(-1, 2).T
    return {"mean": 0.5 * (low + high), "std": (0.5 * (high - low)).clamp(min=0.1)}


def _listed(names: Sequence[str]) -> str:
    """The first names, and their number."""
    if len(names) <= 8:
        return ", ".join(names) or "nothing"
    return f"{', '.join(names[:8])}, ... ({len(names)} in all)"


def load_policy(
    folder: Path,
    robot: Robot,
    module: Path | None = None,
    task: type[Task] | None = None,
    device: torch.device | str = "cpu",
) -> Composition:
    """Load a policy's folder and its module: `module`, or the one with its checksum. Raises
    InputError as `HighLevelPolicy.load`, `find_module`, and for another task or robot."""
    policy = HighLevelPolicy.load(folder, module=module, device=device)
    if task is not None:
        policy.check_task(task)
    skill = SkillModule.load(module or find_module(folder, policy.contract.module_sha256), device)
    skill.check_robot(robot)
    return over(policy, skill)


def find_module(policy: str | Path, sha256: str) -> Path:
    """The folder of the module with a checksum: a shipped one, or one next to a policy's folder.

    Raises:
      InputError: when no module has it.
    """
    folder = Path(policy)
    nearby = folder, folder / "module", *sorted(folder.resolve().parent.glob("*"))
    for candidate in (*map(modules.find, modules.names()), *nearby):
        if (candidate / "module.safetensors").is_file() and module_sha256(candidate) == sha256:
            return candidate
    shipped = ", ".join(modules.names()) or "none"
    raise InputError(
        f"no skill module with sha256 {sha256[:12] or 'unknown'}... among the shipped ones"
        f" ({shipped}) or next to '{policy}'; set module="
    )
