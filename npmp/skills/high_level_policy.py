"""Policies over the latent commands of a skill module: what a policy is, the module's encoder as
one, and the high-level policy of a task with its contract.

On disk a high-level policy is a folder of `policy.safetensors` (weights and scales) and
`policy.json` (the contract): nothing in it can run code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from mocap_data.outside import regular_file
from npmp.core import artifact
from npmp.core.settings import from_mapping
from npmp.envs.rollout import PolicyOutput
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.actors import SkillMemory, skill_memory
from npmp.skills.nets.command_decoder import CommandDecoder
from npmp.skills.nets.high_level import HighLevelConfig, HighLevelNet
from npmp.skills.nets.skill_nets import DecoderState
from npmp.skills.normalizer import Normalizer
from npmp.skills.prior import Habit, Latent, divergence
from npmp.skills.skill_module import SkillModule
from npmp.skills.unroll import unroll_lstm
from npmp.tasks.inputs import SETTINGS
from npmp.tasks.teachers.dribbling import CommanderConfig, dribble_command
from npmp.tasks.velocity import COMMAND_NAMES

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
    alpha: float  # of the prior that it was held to
    # [name, width] in order, before normalization: the module's proprioception
    observation: list[tuple[str, int]]
    command: list[str]  # names of the task's inputs
    command_range: list[list[float]]  # [low, high] of each, as trained
    net: dict[str, Any]
    latent_bound: list[float]  # limit on |m| per dimension
    # of a walking policy that dribbles: the fields of `CommanderConfig`, whose script turns ball
    # and target into a velocity
    commander: dict[str, Any] = field(default_factory=dict)
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
        return {name: getattr(self, name) for name in ("command_range", *SETTINGS)}


class PolicyInput(NamedTuple):
    """What a policy sees at a step, raw; leading shape (...)."""

    senses: Tensor  # (..., o) as `npmp.envs.features.proprioception`
    task: Tensor  # (..., c) as `Task.observe`, in its own units
    z_prev: Tensor  # (..., d) the latent of the step before; 0 at an episode's start
    # what the policy is held to while it learns; None: the AR(1) prior alone
    habit: Habit | None = None


class Player(NamedTuple):
    """A policy and the module whose decoder it commands."""

    policy: EncoderPolicy | HighLevelPolicy
    skill: SkillModule


class EncoderPolicy:
    """A module's encoder as the policy of imitation: z_t ~ N(alpha z_{t-1} + mu, sigma^2), eq. 3.

    It sees the reference and the true state (`Imitation.observe`), and remembers nothing.
    """

    def __init__(self, skill: SkillModule):
        """Encoder and decoder are learned together: the module is its weights."""
        self.weights = skill
        self.alpha = skill.alpha

    def initial_state(self, n: int) -> tuple[()]:
        return ()

    def step(self, given: PolicyInput, state: Any) -> tuple[Latent, Any]:
        mu, sigma = self.weights.encode(given.task, given.z_prev)
        return Latent(self.alpha * given.z_prev + mu, sigma), state


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
        # correlation of the AR(1) prior that it is held to; dimension of the latent command
        self.alpha = contract.alpha
        self.latent_dim = contract.latent_dim
        sizes = from_mapping(HighLevelConfig, contract.net, at="net in the policy's contract")
        observations = sum(width for _, width in contract.observation)
        self.commander = None
        if contract.commander:
            self.commander = from_mapping(
                CommanderConfig, contract.commander, at="commander in the policy's contract"
            )
        inputs = scaled = len(contract.command) + len(contract.extra_inputs)
        # the script's velocity, then ball and target
        if self.commander is not None:
            inputs = 3 + inputs
            scaled = 3
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
          net: its sizes, where it starts, and the prior it is held to where that is not the
            module's.
          module: `module_sha256` of the module's folder.
          bound: limit on |m| per latent dimension; by default the range of latents that the module
            has seen in imitation.
        """
        net = net or HighLevelConfig()
        ranges = list(task.inputs.values())
        policy = HighLevelPolicy(
            PolicyContract(
                robot=skill.robot,
                task=task.name,
                module_sha256=module,
                latent_dim=skill.latent_dim,
                alpha=skill.alpha if net.alpha is None else net.alpha,
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
        perhaps by another clock; of a walking policy also for dribbling (`commanded`). A policy
        that dribbles uses the task's script from then on.

        Raises:
          InputError: for a task with other inputs.
        """
        script: dict[str, Any] = {}
        if task.commander is not None:
            if self.takes_velocities:
                return self.commanded(task, task.commander)
            script = {} if self.commander is None else {"commander": asdict(task.commander)}
        self._check_inputs(task)
        return self._as_of(task, self.state_dict(), clock_s=task.clock_s, **script)

    def _as_of(self, task: Task, weights: dict[str, Any], **contract: Any) -> HighLevelPolicy:
        """A policy of a task with these weights, whose contract says this otherwise."""
        command_range = [list(pair) for pair in task.inputs.values()]
        changes: dict[str, Any] = {"task": task.name, "command_range": command_range, **contract}
        own = replace(self.contract, versions={}, training={}, **changes)
        policy = HighLevelPolicy(own).to(self.observation_scale.mean.device)
        policy.load_state_dict(weights)
        return policy

    @property
    def takes_velocities(self) -> bool:
        """Whether it is told a velocity and nothing else."""
        return tuple(self.contract.command) == COMMAND_NAMES

    def as_module(self, skill: SkillModule) -> SkillModule:
        """This walking policy and its module, as a module whose latents are commands: -1 to 1 in
        each is its lowest to its highest. Raises InputError for a policy of other inputs."""
        own = self.contract
        if not self.takes_velocities or own.extra_inputs or skill.contract.decoder != "lstm":
            raise InputError(
                "walker= is a walking policy that is told a velocity and nothing else, over skills"
            )
        walker = {"net": skill.contract.net, "high_level": own.net, "alpha": own.alpha}
        walker |= {"bound": own.latent_bound, "command_range": own.command_range}
        module = skill.without_skills(len(own.command), decoder="commands", walker=walker)
        assert isinstance(module.decoder, CommandDecoder)  # as asked
        module.decoder.policy.load_state_dict(self.net.state_dict())
        module.decoder.decoder.load_state_dict(skill.decoder.state_dict())
        module.decoder.scale.load_state_dict(self.command_scale.state_dict())
        module.latent_range.fill_(1.0)
        return module

    def commanded(self, task: Task, commander: CommanderConfig) -> HighLevelPolicy:
        """A walking policy as one that dribbles: a script turns ball and target into a command
        (`npmp.tasks.teachers.dribbling`).

        Raises:
          InputError: for a policy of another task than walking, or a task without a ball.
        """
        if self.contract.extra_inputs:
            raise InputError(
                f"the policy observes {self.contract.extra_inputs[0]}, ... after its command; "
                "dribbling gives a command only"
            )
        if not self.takes_velocities or task.commander is None:
            raise InputError(
                "only a walking policy can be used to dribble; this one is of task "
                f"'{self.contract.task}', and '{task.name}' gives {', '.join(task.inputs)}"
            )
        weights = self.state_dict()
        inputs = sum(width for _, width in self.contract.observation) + 3
        # ball and target count for nothing at first
        layer = weights["net.norm.0.weight"]
        nothing = layer.new_zeros(len(layer), len(task.inputs))
        weights["net.norm.0.weight"] = torch.cat((layer[:, :inputs], nothing, layer[:, inputs:]), 1)
        return self._as_of(task, weights, command=list(task.inputs), commander=asdict(commander))

    @property
    def weights(self) -> nn.Module:
        """What is learned of it: all."""
        return self

    def initial_state(self, n: int) -> DecoderState:
        """The state of n fresh episodes."""
        return self.net.initial_state(n)

    def observe(self, given: PolicyInput) -> Tensor:
        """The network's scaled observation, (..., o + c); of one with a script (..., o + 3 + c)."""
        sensed = self.observation_scale(given.senses)
        if self.commander is None:
            return torch.cat((sensed, self.command_scale(given.task)), -1)
        ball, target = given.task.split(2, -1)
        # what the script would say of another place of the ball changes by leaps
        with torch.no_grad():
            command = self.command_scale(dribble_command(ball, target, self.commander))
        return torch.cat((sensed, command, _squashed(ball), _squashed(target - ball)), -1)

    def step(self, given: PolicyInput, state: DecoderState) -> tuple[Latent, DecoderState]:
        """The distribution of z_t of n robots, and the new state."""
        return self.net(self.observe(given), given.z_prev, state)

    def forward(
        self, observations: PolicyInput, state: DecoderState, resets: Tensor
    ) -> tuple[Tensor, Tensor, DecoderState, Tensor]:
        """Unroll over time.

        Args:
          observations: [T, B, ...]. state: before the first step, [B, ...].
          resets: [T, B] bool, the step is an episode's first: it starts with empty memory.

        Returns: mean and std [T, B, d], the memory after the last step, the KL to what the policy
          is held to, [T, B], in nats.
        """
        x = self.net.inputs(self.observe(observations), observations.z_prev)
        hidden, last = unroll_lstm(self.net.memory, x, (state.hidden, state.cell), resets)
        mean, std = self.net.output(x, hidden, observations.z_prev)
        held = divergence(Latent(mean, std), observations.z_prev, self.alpha, observations.habit)
        return mean, std, DecoderState(*last), held

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
            renamed={"besides": "extra_inputs"},
        )
        if module is not None:
            policy.check_module(module)
        return policy.to(device).eval()

    def check_module(self, folder: str | Path) -> None:
        """Refuse a module whose latents this policy has never seen.

        Raises:
          InputError: naming both modules' checksums.
        """
        checksum = module_sha256(folder)
        if checksum != self.contract.module_sha256:
            expected = self.contract.module_sha256
            raise InputError(
                f"the policy commands another skill module than '{folder}'"
                f" (sha256 {expected[:12] or 'unknown'}..., found {checksum[:12]}...)"
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
        if isinstance(task, type):
            return
        self._check_inputs(task)
        for name in ("clock_s", "camera"):
            if (has := getattr(own, name)) != (task_value := getattr(task, name)):
                raise InputError(f"the policy's {name} is {has}, the task's {task_value}")

    def _check_inputs(self, task: Task) -> None:
        own = [*self.contract.command, *self.contract.extra_inputs]
        inputs = [*task.inputs, *task.extra_inputs]
        if own != inputs:
            raise InputError(
                f"the policy observes {_listed(own)}; task '{task.name}' gives {_listed(inputs)}"
            )


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are."""
    if len(names) <= 8:
        return ", ".join(names) or "nothing"
    return f"{', '.join(names[:8])}, ... ({len(names)} in all)"


class PolicyMemory(NamedTuple):
    """What a policy and its module carry from step to step."""

    policy: Any  # (n, ...) the policy's state
    skill: SkillMemory

    @property
    def z(self) -> Tensor:
        """(n, d) the latent of the step before."""
        return self.skill.z


def policy_memory(policy: Any, skill: SkillModule, n: int) -> PolicyMemory:
    """The memory of n fresh episodes."""
    return PolicyMemory(policy.initial_state(n), skill_memory(skill, n))


class PolicyActor:
    """A high-level policy of any task by the mean of z_t, through its module's decoder."""

    def __init__(self, policy: HighLevelPolicy, skill: SkillModule):
        self.policy = policy
        self.skill = skill
        self.initial_memory = partial(policy_memory, policy, skill)

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> PolicyOutput:
        return self.answer(env.observe(), env.task.observe(), memory)

    def answer(self, senses: Tensor, asked: Tensor, memory: PolicyMemory) -> PolicyOutput:
        """The decision for observations (n, o) and the task's inputs (n, c)."""
        latent, state = self.policy.step(PolicyInput(senses, asked, memory.z), memory.policy)
        action, decoder = self.skill.decode(latent.mean, senses, memory.skill.decoder)
        return PolicyOutput(action, PolicyMemory(state, SkillMemory(latent.mean, decoder)))


def load_actor(
    folder: Path,
    robot: Robot,
    module: Path | None = None,
    task: type[Task] | None = None,
    device: torch.device | str = "cpu",
) -> PolicyActor:
    """A policy's folder with its module, the one given or found. Raises InputError as
    `HighLevelPolicy.load`, `find_module`, and for a policy of another task or robot."""
    policy = HighLevelPolicy.load(folder, module=module, device=device)
    if task is not None:
        policy.check_task(task)
    skill = SkillModule.load(module or find_module(folder, policy.contract.module_sha256), device)
    skill.check_robot(robot)
    return PolicyActor(policy, skill)


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


def _squashed(point: Tensor) -> Tensor:
    """Points of the plane (..., 2) [m] within a circle of radius 1, finest near zero: p / (0.3 +
    |p|)."""
    return point / (0.3 + torch.sqrt(point.square().sum(-1, keepdim=True) + 1e-6))
