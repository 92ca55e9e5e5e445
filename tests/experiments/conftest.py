"""One small dataset and one tiny trained run, shared by the tests of the commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mocap_data.store import MotionSet, write_motions
from npmp.experiments import imitate
from npmp.robots import Robot
from npmp.skills.high_level_policy import HighLevelPolicy, module_sha256
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import Walk, WalkConfig
from tests.experiments.command import Inspects, Says, inspecting, printing, refusing


@pytest.fixture(scope="session")
def data(motions: MotionSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of trot and three of walk as a dataset."""
    path = tmp_path_factory.mktemp("data") / "motions.h5"
    write_motions(path, motions)
    return path


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted `npmp imitate debug=tiny` run with seed 0. Not to be
    changed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert imitate.main([f"data={data}", f"out={out}", "debug=tiny", "threads=1"]) == 0
    return out


@pytest.fixture(scope="session")
def policy(trained: Path, robot: Robot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained walking policy of a few units, beside its module's. Not to be
    changed."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("shipped")
    shutil.copytree(trained / "module", place / "module")
    walk = Walk(robot, WalkConfig(command_range=((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5))))
    skill, net = (
        SkillModule.load(trained / "module"),
        HighLevelConfig(input_width=8, hidden_width=8, lstm_width=8),
    )
    created = HighLevelPolicy.for_task(
        skill, walk, net=net, module=module_sha256(trained / "module")
    )
    created.save(place / "anymal_b_walk", training={"module": "tiny"})
    (place / "anymal_b_walk" / "README.md").write_text("# anymal_b_walk\n")
    return place / "anymal_b_walk"


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Says:
    return printing(capsys)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Says:
    return refusing(capsys)


@pytest.fixture
def inspected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Inspects:
    return inspecting(capsys, tmp_path / "findings.json")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that litter shows."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as where nothing says how wide, and errors of a line: COLUMNS and NPMP_DEBUG
    of a terminal, or left by a test runner, change none."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("NPMP_DEBUG", raising=False)
