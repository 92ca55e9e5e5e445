"""The high-level policy of a task over the latent commands of a skill module, with its contract.

On disk it is a folder of `policy.safetensors` (weights and scales) and
`policy.json` (the contract): nothing in it can run code.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from npmp.envs import scripts
from npmp.envs.policy import Observation
from npmp.envs.scripts import Script
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

SCHEMA = "npmp-policy"
VERSION = 2  # 1 had no gain on m


@dataclass(frozen=True)
class PolicyContract:
    """What a user of a policy must know to run it; all of policy.json but the schema and its
    version."""

    robot: str
    task: str  # "walk"
    # of the module.safetensors whose latents the policy commands; "" where it was never saved
    module_sha256: str
    latent_dim: int
    alpha: float  # of the AR(1) prior, where theta starts
    # [name, width] in order, before normalization: the module's proprioception
    observation: list[tuple[str, int]]
    command: list[str]  # names of the task's inputs
    command_range: list[list[float]]  # [low, high] of each, as trained
    net: dict[str, Any]
    latent_bound: list[float]  # limit on |m| per dimension
    # name and settings of a script above, which makes commands of what the task shows
    script: dict[str, Any] = field(default_factory=dict)
    # names of the inputs after the command: `Task.extra_inputs`
    extra_inputs: list[str] = field(default_factory=list)
    clock_s: float | None = None  # period of a clock among these
    camera: dict[str, Any] | None = None  # whose depths are among these: `CameraConfig`
    versions: dict[str, str] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(width < 1 for _, width in self.observation):
            raise ValueError("the observation's widths must all be above zero")
        pairs = all(len(pair) == 2 and pair[0] <= pair[1] for pair in self.command_range)
        if not pairs or len(self.command_range) != len(self.command):
            raise ValueError(
                f"command_range needs [low, high] for each of {', '.join(self.command)}"
            )

    @property
    def sees_ground(self) -> bool:
        """Whether it observes heights of the ground."""
        return any(name.startswith("ground_") for name in self.extra_inputs)

    @property
    def input_settings(self) -> dict[str, Any]:
        """Settings by which a task (`Task.resolve`) gives the policy the inputs that it was trained
        with."""
        names = ("command_range", "clock_s", "sees_ground", "camera")
        return {name: getattr(self, name) for name in names}


def module_sha256(module: str | Path | SkillModule) -> str:
    """SHA-256 of a module's weights file: which module a policy belongs to. Of one in memory that
    of what it saves.

    Raises:
      InputError: when the folder has none.
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
    """z_t from what the robot senses, the command and z_{t-1}. Stateless: the memory goes in and
    comes out.

    `step` acts; calling the policy unrolls it over time, as `npmp.learning.rl`'s learner wants it.
    """

    def __init__(self, contract: PolicyContract):
        """Raises: InputError for a contract with impossible sizes."""
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
            # of policies that dribble, when there was one script
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
            raise InputError(f"bad network settings in the policy's contract: {error}") from error
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
        """An untrained policy of a task over a module's latents, with the module's own input
        scales.

        Args:
          net: its sizes, where it starts, and the correlation of another prior than the
            module's.
          module: `module_sha256` of the module's folder.
          bound: limit on |m| per latent dimension; by default the range of latents that the module
            used in imitation.
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
        scales = {**task.inputs, **task.scales, **task.extra_inputs}
        low, high = torch.tensor(list(scales.values())).T
        policy.command_scale.mean.copy_(0.5 * (low + high))
        policy.command_scale.std.copy_(0.5 * (high - low)).clamp_(min=0.1)
        return policy

    def for_other_task(self, task: Task) -> HighLevelPolicy:
        """The same network with the same weights and input scales, for a task with the same inputs,
        perhaps by another clock; also for one whose script makes this policy's commands (`below`).
        A policy below a script has the task's from then on.

        Raises:
          InputError: for a task with other inputs.
        """
        changes: dict[str, Any] = {}
        if task.script is not None:
            if self.obeys(task.script):
                return self.below(task.script, task)
            if self.script is not None:
                changes = {"script": scripts.settings_of(task.script)}
        self._check_inputs(task)
        return self._as_of(task, self.state_dict(), clock_s=task.clock_s, **changes)

    def _as_of(self, task: Task, weights: dict[str, Any], **contract: Any) -> HighLevelPolicy:
        """A policy of a task with these weights and these changes of the contract."""
        command_range = [list(pair) for pair in task.inputs.values()]
        changes: dict[str, Any] = {"task": task.name, "command_range": command_range, **contract}
        own = replace(self.contract, versions={}, training={}, **changes)
        policy = HighLevelPolicy(own).to(self.observation_scale.mean.device)
        policy.load_state_dict(weights)
        return policy

    def obeys(self, script: Script) -> bool:
        """Whether its inputs are the commands of a script."""
        return tuple(self.contract.command) == script.commands

    def below(self, script: Script, task: Task) -> HighLevelPolicy:
        """This policy below a script, for a task that shows the script's inputs. At first it acts
        on the commands alone; it may learn from the script's `features`.

        Raises:
          InputError: for a policy with other or further inputs than the commands.
        """
        if self.contract.extra_inputs:
            raise InputError(
                f"the policy observes {self.contract.extra_inputs[0]}, ... after its command; "
                f"script '{script.name}' gives a command only"
            )
        if not self.obeys(script):
            raise InputError(
                f"script '{script.name}' commands {', '.join(script.commands)}; this policy of "
                f"task '{self.contract.task}' observes {_listed(self.contract.command)}"
            )
        weights = self.state_dict()
        inputs = sum(width for _, width in self.contract.observation) + len(script.commands)
        # the features count for nothing at first
        layer = weights["net.norm.0.weight"]
        nothing = layer.new_zeros(len(layer), script.feature_width)
        weights["net.norm.0.weight"] = torch.cat((layer[:, :inputs], nothing, layer[:, inputs:]), 1)
        settings = scripts.settings_of(script)
        return self._as_of(task, weights, command=list(task.inputs), script=settings)

    @property
    def prior(self) -> Prior:
        """What it is regularized towards while it learns; none of its weights."""
        return self._prior[0]

    def regularize(self, prior: Prior) -> None:
        """Regularize it towards a prior from now on."""
        # in a tuple: none of its weights
        self._prior = (prior,)

    def regularize_towards(self, skill: SkillModule) -> None:
        """Regularize it towards the module's prior, unless its settings name an AR(1) prior."""
        if self.net.config.alpha is None:
            self.regularize(skill.prior)

    @property
    def weights(self) -> nn.Module:
        """What is learned of it: all."""
        return self

    def initial_state(self, n: int) -> DecoderState:
        """The state of n fresh episodes."""
        return self.net.initial_state(n)

    def inputs(self, observation: Observation) -> Tensor:
        """The network's scaled observation: proprioception, then the task's inputs or, below a
        script, its command and features, (..., o + c)."""
        sensed = self.observation_scale(observation.proprioception)
        task = observation.task
        if self.script is None:
            return torch.cat((sensed, self.command_scale(task)), -1)
        command, _ = self.script.step(observation, ())
        return torch.cat((sensed, self.command_scale(command), self.script.features(task)), -1)

    def step(self, observation: Observation, state: DecoderState) -> tuple[Gaussian, DecoderState]:
        """The distribution of z_t of n robots, and the new state."""
        return self.net(self.inputs(observation), observation.z_before, state)

    def forward(
        self, observations: Observation, state: DecoderState, resets: Tensor
    ) -> tuple[Tensor, Tensor, DecoderState, Tensor]:
        """`unroll`, as a learner takes it: mean and std of the latents [T, B, d], the state after
        the last step, the KL to `prior` [T, B] in nats."""
        unrolled = self.unroll(observations, None, state, resets)
        return *unrolled.latents, unrolled.state, unrolled.kl

    def unroll(
        self, observations: Observation, z: Tree, state: DecoderState, resets: Tensor
    ) -> Unrolled:
        """`latents` over time, by their means.

        z: not used, the latents before each step are among the observations.
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
          resets: [T, B] bool, the step is an episode's first: it starts with empty memory.
        """
        x = self.net.inputs(self.inputs(observations), observations.z_before)
        hidden, last = unroll_lstm(self.net.memory, x, (state.hidden, state.cell), resets)
        return self.net.output(x, hidden, observations.z_before), DecoderState(*last)

    def save(self, folder: str | Path, *, training: dict[str, Any] | None = None) -> None:
        """Write the folder, atomically file by file.

        Raises:
          OSError: when the folder cannot be written.
        """
        content = asdict(self.contract) | ({} if training is None else {"training": training})
        artifact.write(Path(folder), "policy", SCHEMA, VERSION, content, self.state_dict())

    @staticmethod
    def load(
        folder: str | Path, *, module: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> HighLevelPolicy:
        """Read a policy folder. Nothing in it is executed.

        Args:
          module: the folder of the skill module it is to command; refused when it is not the one it
            was trained with.

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
        """Refuse a module of other latents than this policy's.

        Raises:
          InputError: naming both modules' checksums.
        """
        checksum = module_sha256(folder)
        if checksum != self.contract.module_sha256:
            expected = self.contract.module_sha256
            raise InputError(
                f"the policy commands another skill module than '{folder}'"
                f" (sha256 {expected[:12] or 'unknown'}..., got {checksum[:12]}...)"
            )

    def check_task(self, task: Task | type[Task]) -> None:
        """Refuse a task that does not give this policy the inputs that it was trained with.

        Raises:
          InputError: naming both tasks, or both lists of inputs where the tasks fit.
        """
        own = self.contract
        accepted = (task.name, *task.policies_of)
        if own.task not in accepted:
            raise InputError(
                f"the policy was trained for task '{own.task}'; task={task.name} takes one for "
                f"{', '.join(accepted)}"
            )
        self._check_inputs(task)
        for name in () if isinstance(task, type) else ("clock_s", "camera"):
            if (has := getattr(own, name)) != (task_value := getattr(task, name)):
                raise InputError(f"the policy's {name} is {has}, the task's {task_value}")

    def _check_inputs(self, task: Task | type[Task]) -> None:
        own = self.contract.command
        inputs = list(task.inputs)
        # a class without settings may lack inputs that it will have
        if isinstance(task, type):
            own = own[: len(inputs)]
        else:
            own = [*own, *self.contract.extra_inputs]
            inputs = [*inputs, *task.extra_inputs]
        if own != inputs:
            raise InputError(
                f"the policy observes {_listed(own)}; task '{task.name}' gives {_listed(inputs)}"
            )


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are."""
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
    """A policy's folder with its module: `module`, or by its checksum. Raises InputError as
    `HighLevelPolicy.load`, `find_module`, and for a policy of another task or robot."""
    policy = HighLevelPolicy.load(folder, module=module, device=device)
    if task is not None:
        policy.check_task(task)
    skill = SkillModule.load(module or find_module(folder, policy.contract.module_sha256), device)
    skill.check_robot(robot)
    return over(policy, skill)


def find_module(policy: str | Path, sha256: str) -> Path:
    """The folder of the module with these weights: a shipped one, or one beside a policy's folder.

    Raises:
      InputError: where there is none.
    """
    folder = Path(policy)
    beside = folder, folder / "module", *sorted(folder.resolve().parent.glob("*"))
    for place in (*map(modules.find, modules.names()), *beside):
        if (place / "module.safetensors").is_file() and module_sha256(place) == sha256:
            return place
    shipped = ", ".join(modules.names()) or "none"
    raise InputError(
        f"the policy's skill module (sha256 {sha256[:12] or 'unknown'}...) is none of those "
        f"shipped ({shipped})"
        f" and not beside '{policy}'; name it by module="
    )
