"""Forty mistakes at the command line: each one line on stderr that says what to do, and exit 2."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mocap_data.store import MotionSet, write_motions
from tests.experiments.command import Says

MISTAKES = [
    # verbs, actions and options
    ("imitat data=m.h5", "no verb 'imitat'; did you mean 'imitate'?"),
    ("skill shw anymal_b_dog", "npmp skill has no action 'shw'; available: list, show, "),
    ("skill", "npmp skill needs an action; available: list, "),
    ("imitate --data m.h5", "unrecognized arguments: --data; settings are key=value"),
    ("imitate --cfg jobs", "argument --cfg/-c: invalid choice: 'jobs'"),
    ("imitate --cfg job -m seed=1,2", "--multirun and --cfg exclude each other"),
    ("imitate --cfg job --package algor", "--package algor: no part of the config"),
    ("imitate --config-dir nowhere data=m.h5", "--config-dir nowhere: no folder"),
    ("imitate m.h5", "'m.h5' is no setting; settings are key=value"),
    # keys
    ("imitate data=m.h5 stpes=3", "no setting 'stpes'; the nearest are: steps, "),
    ("imitate data=m.h5 policy_lr=3", "the nearest are: algo.policy_lr, "),
    ("imitate data=m.h5 algo.compilee=true", "algo has no setting 'compilee'; the nearest are: "),
    ("imitate data=m.h5 seed.x=1", "has no key 'seed.x': seed holds no further keys"),
    ("imitate data=m.h5 +seed=1", "+seed=1: seed exists; seed=1 sets it"),
    ("imitate data=m.h5 ~sead", "no setting 'sead'; the nearest are: seed, "),
    ("imitate data=m.h5 net.lstm_widht=8", "net has no setting 'lstm_widht'; the nearest are: ls"),
    ("evaluate suite policy=anymal_b_walk scenario.pushh.seconds=3", "'pushh'; the nearest are"),
    ("reuse task.pih=3 module=anymal_b_dog", "task has no setting 'pih'; the nearest are: phi, "),
    # choices
    ("imitate data=m.h5 algo=ppoo", "no algo 'ppoo'; available: mo_vmpo, ppo, world_model"),
    ("reuse task=imitation module=anymal_b_dog", "no task 'imitation'; available: dribble, "),
    ("imitate data=m.h5 experiment=smal", "no experiment 'smal'; available: dog_walk, module, "),
    ("imitate data=m.h5 experiment=walk_module", "npmp imitate takes no config of npmp reuse"),
    ("imitate data=m.h5 debug=huge", "no debug 'huge'; available: none, tiny"),
    ("imitate data=m.h5 algo=null", "algo=null: a choice of algo is left out by ~algo"),
    ("retarget robot=anymal_x out=m2.h5", "anymal_x"),
    # values
    ("imitate data=m.h5 seed=abc", "seed must be a whole number, got 'abc'"),
    ("imitate data=m.h5 steps=0", "steps must be a whole number of at least 1, got 0"),
    ("imitate data=m.h5 seed=1,2", "seed=1,2 holds a comma"),
    ("imitate data=m.h5 evaluation=5", "evaluation=5: must be a mapping, got 5"),
    ("imitate data=m.h5 algo.policy_lr=[1e-3]", "algo.policy_lr must be a list of 2"),
    ("imitate data=m.h5 device=gpu", "no device 'gpu'; available: cpu, cuda, cuda:N"),
    (
        "imitate data=runs/seed=1/m.h5",
        "special characters need quotes: \"data='runs/seed=1/m.h5'\"",
    ),
    ("imitate 'data=it(1).h5'", "special characters need quotes: \"data='it(1).h5'\""),
    # places
    ("imitate", "npmp imitate needs data=... (the motion dataset"),
    ("imitate data=nowhere.h5", "no file 'nowhere.h5'"),
    ("imitate data=m.h5 out=null", "out= is empty; name the place for the result"),
    ("imitate data=m.h5 out=m.h5", "out=m.h5 is a file; a folder is expected"),
    ("retarget out=runs", "out=runs is a folder; a file name is expected"),
    ("imitate resume=runs", "resume=runs: no run folder (it has no config.yaml)"),
    ("sweeps show runs", "runs: no sweep (it has no jobs.json)"),
    # one thing for another
    ("imitate data=op3.h5 robot=anymal_b", "op3"),
    ("reuse module=anymal_b_walk", "module"),
    ("evaluate policy=anymal_b_dog", "policy"),
    ("reuse module=op3_cmu robot=anymal_b", "op3"),
    ("inspect notes.txt", "notes.txt"),
    ("imitate data=notes.txt", "notes.txt"),
]


@pytest.fixture(scope="module")
def place(motions: MotionSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, another robot's, a text and an empty folder."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_motions(folder / "m.h5", motions)
    write_motions(folder / "op3.h5", replace(motions, robot="op3"))
    (folder / "notes.txt").write_text("no motion\n")
    (folder / "runs").mkdir()
    return folder


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_one_line_and_exit_code_2(
    line: str, message: str, place: Path, refused: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    said = refused(*shlex.split(line))
    assert message in said
    assert sorted(place.rglob("*")) == before
