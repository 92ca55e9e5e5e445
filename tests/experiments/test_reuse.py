"""`npmp reuse`, tiny: repeats and resumes to the bit."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots
from npmp.core.artifact import read_tensors
from npmp.envs import TaskEnv
from npmp.envs.features import true_state
from npmp.experiments import cli
from npmp.experiments.command import run_of
from npmp.experiments.compose import compose
from npmp.experiments.reuse import Reuse, inputs, main, scripted_teacher
from npmp.learning.world_model.model_fit import FILE
from npmp.sim import StagedBatchSim
from npmp.skills.high_level_policy import HighLevelPolicy, find_module
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillContract, SkillModule
from tests.actuators.servos import save_knee
from tests.environments import walk_env
from tests.experiments.command import Says

RANGE = "task.command_range=[[0.1,0.8],[-0.2,0.2],[-0.5,0.5]]"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained skill module."""
    torch.manual_seed(0)
    robot = robots.load("anymal_b")
    env = walk_env(robot, 1)
    context = 5 + true_state(env.state, env.home).shape[-1]
    net = NetConfig(latent_dim=4, encoder_width=8, decoder_width=16, lstm_width=8)
    folder = tmp_path_factory.mktemp("skill") / "module"
    SkillModule(SkillContract.for_robot(robot, net, context_size=context, context_horizon=5)).save(
        folder
    )
    return folder


def reuse(module: Path, out: Path, *more: str) -> int:
    return main([f"module={module}", f"out={out}", "debug=tiny", "threads=1", RANGE, *more])


def test_the_weight_of_a_reward_term(module: Path) -> None:
    job = compose("reuse", Reuse, [f"module={module}", RANGE, "task.rewards.velocity.weight=0.1"])
    args = inputs(job.config, run_of(job, Path("out"), 1, job.values))
    task = args["task"](args["robot"], args["config"]).with_rewards(
        weights=args["settings"].weights
    )
    [term] = task.parts.rewards
    state = TaskEnv(task, 1, num_threads=1).state
    # eq. 16 of a robot at rest that is to walk at 0.5 m/s: exp(-0.5^2 / 0.5)
    reward = term(state, torch.tensor([[0.5, 0.0, 0.0]])).item()
    assert reward == pytest.approx(0.1 * math.exp(-0.5))


def test_the_engine(module: Path) -> None:
    job = compose("reuse", Reuse, [f"module={module}", RANGE, "engine=mujoco_staged"])
    args = inputs(job.config, run_of(job, Path("out"), 1, job.values))
    task = args["task"](args["robot"], args["config"])
    env = args["settings"].env(task, 1, SkillModule.load(module), seed=0)
    assert isinstance(env.robots.sim, StagedBatchSim)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_a_resumed_run_equals_an_uninterrupted_one(
    module: Path, tmp_path: Path
) -> None:
    assert reuse(module, tmp_path / "a") == 0
    assert reuse(module, tmp_path / "b") == 0
    assert reuse(module, tmp_path / "c") == 0
    # as if it had been killed after the one before
    for path in (tmp_path / "c").rglob("checkpoint_0000000004.*"):
        path.unlink()
    assert main([f"resume={tmp_path / 'c'}", "threads=1"]) == 0
    for name in ("metrics.csv", "policy/policy.safetensors"):
        expected = (tmp_path / "a" / name).read_bytes()
        assert (tmp_path / "b" / name).read_bytes() == expected
        assert (tmp_path / "c" / name).read_bytes() == expected
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    # 16 robots: 57 steps that are cloned, 12 before the first update, 4 iterations of 4
    assert summary["env_steps"] == 16 * (57 + 12 + 4 * 4) and summary["iterations"] == 4
    assert summary["algorithm"] == "world_model"
    assert set(summary["velocity_error"]) == {"random_latents", "untrained", "after"}
    assert {"clone_loss_before", "clone_loss"} <= set(summary["before"]["warm_up"])
    policy = HighLevelPolicy.load(tmp_path / "a" / "policy", module=module)
    assert policy.contract.command_range == [[0.1, 0.8], [-0.2, 0.2], [-0.5, 0.5]]
    header = (tmp_path / "a" / "metrics.csv").read_text().splitlines()[0]
    assert "wall" not in header and "velocity_error" in header


def test_a_module_that_does_not_say_its_velocities_needs_data(
    module: Path, tmp_path: Path, refused: Says
) -> None:
    out = tmp_path / "out"
    assert "data=FILE.h5" in refused(f"module={module}", f"out={out}", "debug=tiny", by=main)
    assert not out.exists()


def test_only_the_command_line_runs_a_teacher_s_code(module: Path, tmp_path: Path) -> None:
    run = run_of(compose("reuse", Reuse, [f"module={module}"]), tmp_path, 1, {})
    config = Reuse(module=str(module), teacher=f"{tmp_path / 'teacher.py'}:Teacher")
    with pytest.raises(InputError, match="to run its code"):
        scripted_teacher(config, run)


@pytest.mark.slow
def test_finding_the_way_by_commands(module: Path, tmp_path: Path) -> None:
    """A walking policy in the module's place; what finds the way is evaluated with it."""
    walker, out = tmp_path / "walk", tmp_path / "way"
    assert reuse(module, walker, "algo=vmpo", "steps=128") == 0
    args = (f"walker={walker / 'policy'}", "algo=clone", "task.terrain_fields=2")
    assert reuse(module, out, "task=navigate", *args, "steps=128") == 0
    policy = HighLevelPolicy.load(out / "policy", module=out / "module")
    assert policy.latent_dim == 3 and policy.contract.camera is not None
    assert policy.contract.task == "navigate"


@pytest.mark.parametrize("algo", ["vmpo", "world_model"])
def test_from_scratch_in_joint_space(
    module: Path, tmp_path: Path, algo: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # of the first iteration, and what comes before it
    steps = {"vmpo": 128, "world_model": 896}[algo]
    code = reuse(module, tmp_path / "run", "joint_space=true", f"algo={algo}", f"steps={steps}")
    assert code == 0
    assert main([f"resume={tmp_path / 'run'}", f"steps={steps + 64}", "threads=1"]) == 0
    policy = HighLevelPolicy.load(tmp_path / "run" / "policy", module=tmp_path / "run" / "module")
    assert policy.latent_dim == 12 and policy.contract.alpha == 0.0
    expected = tmp_path / "run" / "module"
    assert find_module(tmp_path / "run" / "policy", policy.contract.module_sha256) == expected
    start = f"policy={tmp_path / 'run' / 'policy'}"
    capfd.readouterr()
    assert reuse(module, tmp_path / "no", start, "joint_space=true") == 2
    assert "set module=RUN/module" in capfd.readouterr().err
    assert reuse(module, tmp_path / "no", "walker=anymal_b_walk", "joint_space=true") == 2
    assert "walker=" in capfd.readouterr().err


def test_a_run_goes_on_with_its_own_module_only(
    module: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reuse(module, tmp_path / "run", "algo=vmpo", "steps=256") == 0
    other = SkillModule.load(module)
    with torch.no_grad():
        other.decoder.head.weight.add_(0.1)
    other.save(tmp_path / "other")
    capfd.readouterr()
    assert (
        main(
            [f"resume={tmp_path / 'run'}", f"module={tmp_path / 'other'}", "steps=512", "threads=1"]
        )
        == 2
    )
    assert "another module" in capfd.readouterr().err


def test_a_policy_goes_on_from_another_of_the_same_module(
    module: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reuse(module, tmp_path / "nominal", "steps=960") == 0
    wider = "task.command_range=[[-0.5,1.5],[-0.3,0.3],[-1,1]]"
    start = f"policy={tmp_path / 'nominal' / 'policy'}"
    assert reuse(module, tmp_path / "later", start, wider, "randomization=paper", "steps=960") == 0
    first, later = (
        HighLevelPolicy.load(tmp_path / name / "policy", module=module)
        for name in ("nominal", "later")
    )
    assert later.contract.command_range == [[-0.5, 1.5], [-0.3, 0.3], [-1.0, 1.0]]
    # the weights know these scales
    assert torch.equal(later.command_scale.mean, first.command_scale.mean)
    changed = [
        (a - b).abs().max().item()
        for a, b in zip(later.parameters(), first.parameters(), strict=True)
    ]
    assert 0.0 < max(changed) < 0.02  # two updates at 5e-4 and not a network of its own
    summary = json.loads((tmp_path / "later" / "summary.json").read_text())
    before = json.loads((tmp_path / "nominal" / "summary.json").read_text())["velocity_error"][
        "after"
    ]
    assert summary["velocity_error"]["untrained"] != before  # its own commands and physics
    assert summary["before"]["warm_up"]["model_goes_on"] == 1.0  # though that was told no physics
    # a new policy continues from the module's world model
    trained = tmp_path / "module"
    shutil.copytree(module, trained)
    shutil.copy(tmp_path / "nominal" / "policy" / FILE, trained)
    assert reuse(trained, tmp_path / "new", "steps=960") == 0
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())
    assert summary["before"]["warm_up"]["model_goes_on"] == 1.0
    scales = [
        read_tensors(tmp_path / run / "policy" / FILE)["inputs.mean"]
        for run in ("nominal", "later")
    ]
    assert torch.equal(*scales)
    capfd.readouterr()
    assert reuse(module, tmp_path / "no", start, "high_level.lstm_width=17") == 2
    assert "high_level.lstm_width=17 cannot change policy=" in capfd.readouterr().err
    other = SkillModule.load(module)
    with torch.no_grad():
        other.decoder.head.weight.add_(0.1)
    other.save(tmp_path / "other")
    capfd.readouterr()
    assert reuse(tmp_path / "other", tmp_path / "no", start) == 2
    assert "the policy commands another skill module than" in capfd.readouterr().err


@pytest.mark.slow
def test_a_policy_teaches_a_smaller_one_by_its_own_commands(
    module: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reuse(module, tmp_path / "first", "algo=vmpo", "steps=64", "task.clock_s=0.5") == 0
    teacher = f"teacher={tmp_path / 'first' / 'policy'}"
    begin = [f"module={module}", "algo=clone", "debug=tiny", "threads=1"]
    assert main([*begin, teacher, "high_level.lstm_width=12", f"out={tmp_path / 'small'}"]) == 0
    small = HighLevelPolicy.load(tmp_path / "small" / "policy", module=module).contract
    assert small.command_range == [[0.1, 0.8], [-0.2, 0.2], [-0.5, 0.5]] and small.clock_s == 0.5
    assert small.net["lstm_width"] == 12 and small.training["teacher"] == "policy"
    capfd.readouterr()
    assert main([*begin, f"out={tmp_path / 'own'}", RANGE]) == 2
    assert "task 'walk' has no teacher" in capfd.readouterr().err
    assert reuse(module, tmp_path / "no", teacher, "task.clock_s=0.5") == 2
    assert "teacher= needs algo=clone" in capfd.readouterr().err


@pytest.mark.slow
def test_a_policy_with_a_map_teaches_one_with_a_camera(module: Path, tmp_path: Path) -> None:
    stairs = ["task.terrain=stairs", "task.terrain_fields=2"]
    first = [*stairs, "algo=vmpo", "steps=64", "task.sees_ground=true"]
    assert reuse(module, tmp_path / "first", *first) == 0
    teacher = f"teacher={tmp_path / 'first' / 'policy'}"
    begin = [f"module={module}", "algo=clone", "debug=tiny", "threads=1", *stairs]
    assert main([*begin, teacher, "task.camera=flight", f"out={tmp_path / 'second'}"]) == 0
    second = HighLevelPolicy.load(tmp_path / "second" / "policy", module=module).contract
    assert second.camera is not None and not second.sees_ground
    assert second.training["settings"]["camera"] == second.camera
    assert second.command_range == [[0.1, 0.8], [-0.2, 0.2], [-0.5, 0.5]]
    assert main([f"resume={tmp_path / 'second'}", "steps=3200"]) == 0


@pytest.mark.slow
def test_joints_that_a_model_of_actuators_moves_resume_to_the_bit_and_are_recorded(
    module: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_knee(tmp_path / "knee")
    drives = f"actuator={tmp_path / 'knee'}"
    for name in ("a", "b"):
        assert reuse(module, tmp_path / name, drives) == 0
    for path in (tmp_path / "b").rglob("checkpoint_0000000004.*"):
        path.unlink()
    assert main([f"resume={tmp_path / 'b'}", "threads=1"]) == 0
    expected = (tmp_path / "a" / "metrics.csv").read_bytes()
    assert (tmp_path / "b" / "metrics.csv").read_bytes() == expected
    record = HighLevelPolicy.load(tmp_path / "a" / "policy").contract.training["actuator"]
    assert record["name"] == "knee" and len(record["sha256"]) == 64
    capfd.readouterr()
    judge = [
        "evaluate",
        f"policy={tmp_path / 'a' / 'policy'}",
        f"module={module}",
        "task=walk",
        "debug=tiny",
    ]
    assert cli.main([*judge, f"out={tmp_path / 'judged'}"]) == 0
    assert "trained with actuator=knee, evaluated with actuator=pd" in capfd.readouterr().out
    assert reuse(module, tmp_path / "c", f"actuator={tmp_path / 'nowhere'}") == 2
    assert "no actuator model in" in capfd.readouterr().err
