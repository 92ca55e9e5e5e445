"""Everything that computes on a device computes there: environments and training on another device
than the CPU.

Where there is no GPU a pretended one takes its place. Its tensors hold their numbers on the CPU,
but say that they are elsewhere, and no operation takes tensors of both places: what CUDA would
refuse is refused here, and besides what it would do at the price of waiting, as indexing by tensors
on the CPU. The arithmetic is the CPU's, so that results must equal the CPU's to the bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.core.devices import has_native_bfloat16
from npmp.envs import TaskEnv
from npmp.envs.features import ReferenceFeatures
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.evaluation.tracking import track
from npmp.evaluation.trial import run_trial
from npmp.learning.agents import LatentAgent, ModuleAgent
from npmp.learning.imitation import ImitationModelBasedConfig, trained_module
from npmp.learning.model_based import ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyTrainer, VMPOTraining
from npmp.learning.reuse import trained_policy
from npmp.learning.student import StudentConfig, StudentTrainer, teacher_of
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import TrackingPolicy, over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Imitation, ImitationEnv
from npmp.tasks.recover import Recover, RecoverConfig
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import EVERYTHING, imitation_env, walk_env
from tests.trainers import SMALL

ELSEWHERE = torch.device("meta")  # a kind that torch knows and nothing here uses otherwise
CPU = torch.device("cpu")
NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
FULL = RobotBatchConfig(
    hold="first_order",
    physics=EVERYTHING,
    pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.1),
    sensors=SensorConfig(
        delay_s=(0.0, 0.03), joint_noise=0.03, gyro_noise=(0.1, 0.2, 0.8), accelerometer_noise=0.5
    ),
)


# --- the pretended device


class Elsewhere(Tensor):
    """A tensor that says it is on another device; `held` has its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Generator(torch.Generator):
    """A generator of the pretended device: the CPU's numbers."""

    place = CPU

    def __new__(cls, device: Any = CPU) -> Generator:
        made = super().__new__(cls, CPU)
        made.place = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.place


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on tensors of one place, as a device would: factories by their device, copies
    between places freely."""
    everything = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
    there = [a for a in everything if isinstance(a, Elsewhere)]
    device = kwargs.get("device")
    if device is not None and torch.device(device) == ELSEWHERE:
        kwargs = {**kwargs, "device": CPU}
    name = func.overloadpacket.__name__
    copies = name in ("_to_copy", "copy_")
    if (
        there
        and not copies
        and any(a.dim() > 0 for a in everything if not isinstance(a, Elsewhere))
    ):
        raise RuntimeError(f"{func}: tensors on the CPU and elsewhere")
    result_there = bool(there) if device is None else torch.device(device) == ELSEWHERE
    if name == "copy_":
        result_there = isinstance(args[0], Elsewhere)
    # an operation in place returns the tensor that it was given
    known = {id(a.held): a for a in there}
    out = func(*tree_map(held, args), **tree_map(held, kwargs))
    if not result_there:
        return out

    def brought(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else Elsewhere(x)

    return tree_map(brought, out)


def held(x: Any) -> Any:
    return x.held if isinstance(x, Elsewhere) else x


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Draws, whose generators the dispatcher does not know again, and what is no operation to it:
    `torch.tensor(..., device)` and the like, which leave the numbers out for this kind of device.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist:  # refused for every kind of one's own
            return func(args[0].cpu())
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Elsewhere):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(
                torch.tensor(i).to(ELSEWHERE) if isinstance(i, list) else i for i in index
            )
            return func(args[0], index, *args[2:])
        if func is Tensor.new_tensor:
            like, *args = args
            kwargs = {"dtype": like.dtype, "device": like.device, **kwargs}
        elif func not in (torch.tensor, torch.as_tensor) or isinstance(args[0], Tensor):
            out, generator = func(*args, **kwargs), kwargs.get("generator")
            if generator is not None and out.device != generator.device:
                raise RuntimeError(
                    f"{func}: the generator is on {generator.device}, the numbers are not"
                )
            return out
        device = kwargs.pop("device", None)
        made = torch.tensor(*args, **kwargs)
        return made if device is None else made.to(device)


# torch warns that copying to a tensor of this kind does nothing; here it does
pytestmark = pytest.mark.filterwarnings("ignore:.*which is a no-op.*:UserWarning")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(geometry, "_placed", {})
    with Functions(), Dispatch():
        yield ELSEWHERE


def numbers(x: Tensor) -> Tensor:
    """A tensor of any place as one of the CPU."""
    return x.detach().cpu()


@pytest.mark.parametrize(
    ("capabilities", "isa", "native"),
    [
        ({"avx512_bf16": True}, "ALL", True),
        ({"bf16": True}, "DEFAULT", True),
        ({"avx512_bf16": False, "avx512_f": True}, "ALL", False),
        ({"avx512_bf16": True}, "AVX2", False),
        ({}, "ALL", False),
    ],
)
def test_bfloat16_is_native_where_the_processor_and_onednn_have_it(
    capabilities: dict[str, bool], isa: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert has_native_bfloat16() is native


def test_the_pretended_device_refuses_what_cuda_refuses(elsewhere: torch.device) -> None:
    x, y = torch.arange(3.0, device=elsewhere), torch.arange(3.0)
    assert x.device == elsewhere and numbers(x + 1.0).tolist() == [1.0, 2.0, 3.0]
    assert torch.equal(numbers(x * torch.tensor(2.0)), 2.0 * y)  # a number from the CPU will do
    assert numbers(torch.tensor([1.0, 2.0], device=elsewhere)).tolist() == [1.0, 2.0]
    assert numbers(x[[2, 0]]).tolist() == [2.0, 0.0]
    for wrong in (
        lambda: x + y,
        lambda: y[x.long()],
        lambda: x[y.long()],
        lambda: torch.cat((x, y)),
    ):
        with pytest.raises(RuntimeError, match="elsewhere"):
            wrong()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=torch.Generator(), device=elsewhere)
    with pytest.raises((TypeError, RuntimeError)):
        x.numpy()
    weight = torch.nn.Linear(3, 1).to(elsewhere)
    weight(x).backward()
    assert torch.equal(numbers(weight.weight.grad[0]), y)  # type: ignore[index]


# --- what is held against the CPU


def imitate(robot: Robot, motions: MotionSet, device: torch.device) -> ImitationEnv:
    return imitation_env(robot, motions, 4, robots=FULL, device=device)


FAST = ImitationModelBasedConfig(
    **SMALL, prior_share=0.3, prior_steps=4, rejoin_rate=10.0, posture=1.0, wasserstein=1.0
)
PUBLISHED = VMPOTraining(unroll=4, critic_hidden=(16,), target_period=1)
CLONED = StudentConfig(unroll=4, kept=2, updates=2, batch=2)


def new_module(env: ImitationEnv) -> SkillModule:
    torch.manual_seed(0)  # of its weights
    task = Imitation(env.robot, None, env.task._motions)
    features = ReferenceFeatures(env.robot, task.reference)
    return SkillModule.for_reference(env.robot, NET, task.reference, features)


def fast(robot: Robot, motions: MotionSet, device: torch.device) -> ModelBasedTrainer:
    env = imitate(robot, motions, device)
    skill = new_module(env)
    return ModelBasedTrainer(env, TrackingPolicy(skill), skill, FAST)


def published(robot: Robot, motions: MotionSet, device: torch.device) -> OnPolicyTrainer:
    env = imitate(robot, motions, device)
    agent = ModuleAgent(new_module(env).to(device), 0.2)
    agent.network.to(device)
    return OnPolicyTrainer(env, agent, PUBLISHED)


def walk(
    robot: Robot, motions: MotionSet, skill: SkillModule, device: torch.device
) -> OnPolicyTrainer:
    env = walk_env(
        robot, 4, motions=motions, robots=FULL, device=device, episode_s=0.1, command_period_s=0.04
    )
    return OnPolicyTrainer(env, latent_agent(env, skill), PUBLISHED)


def latent_agent(env: TaskEnv[Any], skill: SkillModule, **more: Any) -> LatentAgent:
    torch.manual_seed(0)  # of the policy's weights
    net = HighLevelConfig(16, 16, 16)
    policy = HighLevelPolicy.for_task(skill, env.task, net=net, **more)
    return LatentAgent(policy.to(env.device), skill.to(env.device))


def shown(task: Recover | Walk, skill: SkillModule, device: torch.device) -> StudentTrainer:
    env = TaskEnv(task, 4, robots=FULL, num_threads=1, device=device, episode_s=0.12)
    agent = latent_agent(env, skill.in_joint_space(), bound=[8.0] * 12)
    return StudentTrainer(env, agent, teacher_of(env, agent), CLONED)


def get_up(
    robot: Robot, motions: MotionSet, skill: SkillModule, device: torch.device
) -> StudentTrainer:
    return shown(Recover(robot, RecoverConfig(drops=4)), skill, device)


def trot(
    robot: Robot, motions: MotionSet, skill: SkillModule, device: torch.device
) -> StudentTrainer:
    config = WalkConfig(terrain="stairs+flat", terrain_fields=2, clock_s=0.5, sees_ground=True)
    return shown(Walk(robot, config), skill, device)


def twice(trainer: Any) -> list[dict[str, float]]:
    """Figures of an iteration, and of one after a checkpoint."""
    first = trainer.iteration(0.0)
    state = {name: numbers(value).clone() for name, value in trainer.state_dict().items()}
    trainer.load_state_dict(state)
    return [first, trainer.iteration(0.5)]


def course(trainer: Any) -> tuple[list[dict[str, float]], dict[str, Tensor], Tensor]:
    """Figures of two iterations; what the trainer is then; how the module tracks."""
    if isinstance(trainer, ModelBasedTrainer):
        trainer.warm_up()
    figures = twice(trainer)
    clip, frame = torch.tensor([0, 0, 1, 1]), torch.tensor([50, 60, 150, 160])
    tracked = track(trained_module(trainer), trainer.env, clip, frame)
    state = {name: numbers(value) for name, value in trainer.state_dict().items()}
    return figures, state, tracked.qpos


@pytest.mark.slow
@pytest.mark.parametrize("build", [fast, published])
def test_training_elsewhere_is_training_on_the_cpu(
    robot: Robot, motions: MotionSet, build: Any, request: pytest.FixtureRequest
) -> None:
    """Collection with everything randomized, updates, checkpoint and evaluation: each number, and
    every tensor of the state."""
    expected = course(build(robot, motions, CPU))
    device = request.getfixturevalue("elsewhere")
    trainer = build(robot, motions, device)
    figures, state, qpos = course(trainer)
    assert figures == expected[0]
    assert torch.equal(qpos, expected[2]) and qpos.device == CPU
    assert state.keys() == expected[1].keys()
    for name, value in state.items():
        assert torch.equal(value, expected[1][name]), name
    # plain numbers, and what belongs to the simulator or to generators, is the host's
    hosts = ("rng", "generator", "counts", "steps", "rate")
    for name, value in trainer.state_dict().items():
        if value.dim() and not name.startswith("env.robots.sim"):
            assert value.device == device or name.split(".")[-1] in hosts, name


@pytest.mark.slow
@pytest.mark.parametrize("build", [walk, get_up, trot])
def test_reuse_elsewhere_is_reuse_on_the_cpu(
    robot: Robot, motions: MotionSet, build: Any, request: pytest.FixtureRequest
) -> None:
    skill = trained_module(published(robot, motions, CPU)).requires_grad_(False)
    results = []
    for device in (CPU, ELSEWHERE):
        if device == ELSEWHERE:
            request.getfixturevalue("elsewhere")
        trainer = build(robot, motions, skill, device)
        figures = twice(trainer)
        actor = over(trained_policy(trainer), trainer.agent.skill)
        trial = run_trial(actor, trainer.env, seconds=0.1)
        results.append((figures, trainer.env.task.figures(trial), trial.qpos))
    assert results[0][:2] == results[1][:2]
    assert torch.equal(results[0][2], results[1][2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_gpu(robot: Robot, motions: MotionSet) -> None:
    """The whole loop there, and an action that does the same to a robot as on the CPU."""
    device = torch.device("cuda:0")
    env = imitation_env(robot, motions, 64, robots=FULL, device=device)
    skill = new_module(env)
    config = dataclasses.replace(FAST, policy_batch=64)
    figures, state, _ = course(ModelBasedTrainer(env, TrackingPolicy(skill), skill, config))
    assert all(value == value for row in figures for value in row.values())
    assert all(
        torch.isfinite(value).all() for name, value in state.items() if value.is_floating_point()
    )
    ends = []
    for place in (CPU, device):
        env = imitation_env(robot, motions, 2, device=place)
        env.reset(
            clip=torch.tensor([0, 1], device=place), frame=torch.tensor([10, 120], device=place)
        )
        for _ in range(3):
            env.step(torch.full((2, 12), 0.1, device=place))
        ends.append(numbers(env.state.pack()))
    # accelerations: differences of differences
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=2e-2)
