"""Mistakes at the command line: each is one line on stderr that names the fault, and exit 2."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mocap_data.store import MotionSet, write_motions
from tests.experiments.command import Says

MISTAKES = [
    # verbs, actions and options
    ("imitat data=m.h5", "did you mean 'imitate'?"),
    ("skill shw anymal_b_dog", "available: list, show, "),
    ("skill", "available: list, "),
    ("imitate --data m.h5", "--data"),
    ("imitate --cfg jobs", "'jobs'"),
    ("imitate --cfg job -m seed=1,2", "--multirun and --cfg"),
    ("imitate --cfg job --package algor", "--package algor"),
    ("imitate --config-dir nowhere data=m.h5", "--config-dir nowhere"),
    ("imitate m.h5", "'m.h5'"),
    # keys
    ("imitate data=m.h5 stpes=3", "no setting 'stpes'; the nearest are: steps, "),
    ("imitate data=m.h5 policy_lr=3", "the nearest are: algo.policy_lr, "),
    ("imitate data=m.h5 algo.compilee=true", "no setting 'compilee'; the nearest are: compile, "),
    ("imitate data=m.h5 seed.x=1", "'seed.x'"),
    ("imitate data=m.h5 +seed=1", "seed=1 sets it"),
    ("imitate data=m.h5 ~sead", "no setting 'sead'; the nearest are: seed, "),
    ("imitate data=m.h5 ~algo.ema", "~algo.ema"),
    ("evaluate suite policy=anymal_b_walk scenario.pushh.seconds=3", "'pushh'; the nearest are"),
    ("reuse task.pih=3 module=anymal_b_dog", "no setting 'pih'; the nearest are: phi, "),
    ("reuse task.ground.terain=x module=anymal_b_dog", "'terain'; the nearest are: terrain, "),
    ("reuse module=anymal_b_dog task.rewards.speed.weight=1", "'speed'; available: velocity"),
    ("reuse module=anymal_b_dog task.rewards.velocity.weigth=1", "the nearest are: weight"),
    (
        "reuse module=anymal_b_dog task.rewards.velocity=1",
        "task.rewards.velocity must be a mapping",
    ),
    (
        "imitate data=m.h5 debug=tiny task.rewards.orientation.weight=2",
        "task.rewards.orientation.weight changes nothing with algo=world_model",
    ),
    # choices
    ("imitate data=m.h5 algo=ppoo", "'ppoo'; available: mo_vmpo, ppo, world_model"),
    ("reuse task=imitation module=anymal_b_dog", "'imitation'; available: dribble, "),
    ("imitate data=m.h5 experiment=walk_module", "npmp reuse"),
    ("imitate data=m.h5 debug=huge", "'huge'; available: none, tiny"),
    ("imitate data=m.h5 algo=null", "~algo"),
    ("retarget robot=anymal_x out=m2.h5", "'anymal_x'"),
    ("evaluate suite policy=anymal_b_walk scenarios=[moon]", "no scenario 'moon'"),
    ("evaluate suite policy=anymal_b_walk scenarios=[]", "scenarios=[]"),
    ("evaluate policy=anymal_b_walk task=path 'task.path=square dance'", "'square dance'"),
    ("play mode=fly", "'fly'"),
    ("data fetch cat", "'cat'"),
    ("actuator fit data=log.npz model=lstm", "'lstm'; available: pd, "),
    # values
    ("imitate data=m.h5 seed=abc", "seed must be a whole number, got 'abc'"),
    ("imitate data=m.h5 steps=0", "steps must be a whole number of at least 1, got 0"),
    ("imitate data=m.h5 steps=" + "9" * 6000, "steps: "),
    ("imitate data=m.h5 seed=1,2", "-m seed=1,2"),
    ("imitate data=m.h5 evaluation=5", "evaluation=5"),
    ("imitate data=m.h5 algo.policy_lr=[1e-3]", "algo.policy_lr"),
    ("imitate data=m.h5 algo.horizon=[0,0]", "horizon must be a whole number of at least 1"),
    ("imitate data=m.h5 tempos=[0]", "tempo=0"),
    ("imitate data=m.h5 engine=bullet", "'bullet'; available: mujoco, mujoco_staged"),
    ("imitate data=m.h5 device=gpu", "'gpu'; available: cpu, cuda, cuda:N"),
    ("deploy check x device=cuda", "device=cuda"),
    ("imitate data=runs/seed=1/m.h5", "\"data='runs/seed=1/m.h5'\""),
    ("reuse module=anymal_b_dog task.command_range=[[1,0],[0,0],[0,0]]", "low <= high"),
    ("evaluate policy=anymal_b_walk evaluation.pushes=[a]", "evaluation.pushes[0]"),
    ("render policy=anymal_b_walk command=[3,0,0] out=f.webp", "forward_mps"),
    ("render policy=anymal_b_walk out=film.avi", "film.avi"),
    ("robots add notes.txt name=a/b", "name=a/b"),
    ("evaluate module=anymal_b_dog data=m.h5 task=walk", "needs policy="),
    ("evaluate module=anymal_b_dog data=m.h5 evaluation.robots=3", "evaluation.robots=3"),
    ("evaluate policy=anymal_b_walk starts=3", "starts=3"),
    ("reuse module=anymal_b_dog num_actors=2", "actors=ray"),
    ("reuse module=anymal_b_dog algo=clone teacher=none.py:T", "none.py:T"),
    ("retarget marker_cutoff_hz=0", "marker_cutoff_hz must be above 0"),
    ("sysid excite excitation.seconds=3", "seconds=3"),
    ("data export m.h5 clips=[run]", "'run'; available: "),
    ("data export m.h5 split=test", "'test'"),
    # places
    ("imitate", "npmp imitate needs data=..."),
    ("imitate data=nowhere.h5", "'nowhere.h5'"),
    ("imitate data=m.h5 out=null", "out="),
    ("imitate data=m.h5 out=m.h5", "out=m.h5 is a file"),
    ("imitate data=m.h5 out=/dev/null/x", "/dev/null/x"),
    ("retarget out=runs", "out=runs is a folder"),
    ("imitate resume=runs", "resume=runs"),
    ("sweeps show runs", "jobs.json"),
    ("skill pack anymal_b_dog", "out="),
    ("evaluate data=m.h5", "needs module="),
    ("evaluate compare nowhere", "'nowhere'"),
    ("robots check .", "robot.yaml"),
    ("robots add menagerie:dog.xml", "menagerie:FOLDER/FILE.xml"),
    # one thing for another
    ("imitate data=op3.h5 robot=anymal_b", "op3"),
    ("reuse module=anymal_b_walk", "module"),
    ("evaluate policy=anymal_b_dog", "policy"),
    ("evaluate policy=anymal_b_walk task=imitation", "task=imitation"),
    ("evaluate policy=anymal_b_walk module=op3_cmu", "module"),
    ("reuse module=op3_cmu robot=anymal_b", "op3"),
    ("play recovery=anymal_b_walk", "'walk'"),
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


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line[:60] for line, _ in MISTAKES])
def test_one_line_and_exit_code_2(
    line: str, message: str, place: Path, refused: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert message in refused(*shlex.split(line))
    assert sorted(place.rglob("*")) == before
