"""What presets come to, held against the paper's figures, written by hand here."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from npmp import tasks
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.experiments import imitate
from npmp.experiments.backend import robots_config_of
from npmp.skills import policies
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.tasks import Dribble
from tests.experiments.jobs import job_of


@functools.cache
def drawn(verb: str, *arguments: str) -> RobotBatchConfig:
    """Composing takes a while, and several tests ask for the same."""
    needed = {"imitate": ["data=x"], "reuse": ["module=x"]}[verb]
    return robots_config_of(job_of(verb, *needed, *arguments).config, RobotBatchConfig())


def test_published_has_the_papers_values() -> None:
    job = job_of("imitate", "experiment=published", "data=x")
    config, algo = job.config, job.config.algo
    assert job.chosen["algo"] == "mo_vmpo"
    assert config.num_envs >= 1000 and config.steps == 3 * 10**10
    assert (algo.unroll, algo.passes, algo.minibatches) == (32, 1, 1)
    assert (algo.beta, algo.beta_ramp) == (0.3, 0.5)
    assert algo.initial_std == 0.2 and algo.critic_hidden == (1024, 1024, 1024)
    assert algo.gamma == 0.95 and algo.target_period == 100
    assert (algo.learning_rate, algo.dual_learning_rate) == (1e-4, 1e-4)
    assert (algo.epsilon_temperature, algo.epsilon_std) == ((0.1,), 1e-5)
    assert (algo.initial_alpha, algo.popart_step_size) == (1.0, 3e-4)
    assert config.net == NetConfig(60, 0.95, 1024, 256, 256)
    assert config.task.uniform_starts == 1.0 and config.task.hold == "first_order"
    assert (
        config.randomization
        == job_of("imitate", "data=x", "randomization=paper").config.randomization
    )


def test_published_gives_way_to_robot_and_command_line() -> None:
    op3 = drawn("imitate", "experiment=published", "robot=op3")
    paper = {
        name: drawn("imitate", "randomization=paper", f"robot={name}")
        for name in ("anymal_b", "op3")
    }
    assert op3 == paper["op3"] != paper["anymal_b"]
    job = job_of(
        "imitate",
        "experiment=published",
        "data=x",
        "randomization=none",
        "net=small",
        "algo.beta=0.1",
    )
    assert job.chosen["randomization"] == "none"
    assert (job.config.net.latent_dim, job.config.algo.beta) == (32, 0.1)


@pytest.mark.slow
def test_published_runs(data: Path, tmp_path: Path) -> None:
    """One iteration of 16 robots by 16 steps, randomized."""
    out = tmp_path / "run"
    args = [
        f"data={data}",
        f"out={out}",
        "experiment=published",
        "debug=tiny",
        "steps=256",
        "threads=1",
    ]
    assert imitate.main([*args, "evaluation.starts=2"]) == 0
    lines = (out / "metrics.csv").read_text().splitlines()
    assert len(lines) == 2 and (out / "module").is_dir()


@pytest.mark.parametrize(
    ("verb", "robot", "force", "duration_s", "gap_s"),
    [
        ("imitate", "anymal_b", 50.0, 0.1, 1.0),
        ("imitate", "op3", 3.0, 0.1, 1.0),
        ("reuse", "anymal_b", 150.0, 0.2, 3.0),
        ("reuse", "op3", 10.0, 0.15, 3.0),
    ],
)
def test_pushes_are_smaller_shorter_and_more_frequent_in_imitation(
    verb: str, robot: str, force: float, duration_s: float, gap_s: float
) -> None:
    pushes = drawn(verb, "randomization=paper", f"robot={robot}").pushes
    assert (pushes.force, pushes.duration_s, pushes.gap_s) == (force, duration_s, gap_s)
    wide = drawn(verb, "randomization=wide", f"robot={robot}").pushes
    assert (wide.force, wide.duration_s, wide.gap_s) == (1.5 * force, duration_s, gap_s)


def test_only_op3_carries_a_payload_and_all_but_pushes_is_the_same_in_reuse() -> None:
    for preset, robot, payload in (
        ("paper", "op3", (0.0, 0.5)),
        ("wide", "op3", (0.0, 0.75)),
        ("paper", "anymal_b", None),
    ):
        one, other = (
            drawn(verb, f"randomization={preset}", f"robot={robot}")
            for verb in ("imitate", "reuse")
        )
        assert one.physics.payload == payload
        assert (one.physics, one.sensors) == (other.physics, other.sensors)


def test_contacts_are_added_to_paper() -> None:
    """Unitree's feet and MuJoCo's defaults are within the ranges."""
    paper, contacts = (
        drawn("reuse", f"randomization={name}", "robot=unitree_go2")
        for name in ("paper", "contacts")
    )
    assert (contacts.pushes, contacts.sensors) == (paper.pushes, paper.sensors)
    assert (contacts.physics.mass, contacts.physics.gain) == (
        paper.physics.mass,
        paper.physics.gain,
    )
    for name, unitree, default in (
        ("friction", 0.4, 1.0),
        ("torsional", 0.02, 0.005),
        ("rolling", 0.01, 0.0001),
        ("impratio", 100.0, 1.0),
        ("contact_s", 0.02, 0.02),
    ):
        low, high = getattr(contacts.physics, name)
        assert low <= min(unitree, default) and max(unitree, default) <= high
    assert contacts.physics.restitution == (0.0, 0.4)
    assert contacts.physics.condim == (3, 4, 6)
    assert contacts.physics.cone == ("pyramidal", "elliptic")


def test_op3_walks_by_its_own_numbers() -> None:
    op3, anymal = (
        job_of("reuse", "module=x", f"robot={name}").config.task for name in ("op3", "anymal_b")
    )
    assert (op3.phi, op3.velocity_filter) == (0.05, 0.95)
    assert (anymal.phi, anymal.velocity_filter) == (0.5, 0.0)
    assert op3.episode_s == anymal.episode_s == 20.0
    assert job_of("reuse", "module=x", "robot=op3", "task.phi=0.2").config.task.phi == 0.2


def test_op3s_ball_is_that_of_its_shipped_policy() -> None:
    """A ball of RoboCup's KidSize, and a script within the walker's commands."""
    op3 = job_of("evaluate", "policy=op3_dribble")
    task = op3.config.task
    assert op3.chosen["task"] == "dribble" and op3.values["robot"] == "op3"
    assert (task.radius_m, task.mass_kg, task.jump_m) == ((0.062, 0.073), (0.14, 0.22), 1.0)
    policy = HighLevelPolicy.load(policies.find("op3_dribble"))
    assert policy.script is not None and policy.script.config == task.teacher
    assert tasks.trained_config(Dribble, policy.contract.training) == task
    anymal = job_of("evaluate", "policy=anymal_b_dribble").config.task
    assert (anymal.radius_m, anymal.jump_m, anymal.teacher.reach) == ((0.105, 0.129), 2.0, 0.373)
