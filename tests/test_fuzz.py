"""Modules, policies, checkpoints, robot.yaml and MJCF with damaged bytes and values: a result or
one clear line.

Seeded, some seconds in the suite; NPMP_FUZZ=N takes N examples of each kind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mocap_data.errors import InputError
from mocap_data.safe_yaml import read_yaml as load
from npmp import robots
from npmp.core import artifact, checkpoint, state
from npmp.robots import Robot
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillContract, SkillModule
from npmp.tasks import Walk

EXAMPLES = int(os.environ.get("NPMP_FUZZ", "60"))
VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    2**62,
    -(10**400),
    float("nan"),
    float("inf"),
    "",
    "x",
    "\u0000",
    "é" * 300,
    [],
    [None] * 40,
    {},
    [[["x", 1]]],
    "${a}",
    "../..",
    "/dev/zero",
)
PIECES = (
    b"\0",
    b"\xff\xfe",
    b"[" * 3000,
    b"9" * 6000,
    b"&a ",
    b": ",
    b'"',
    b"nan",
    b"1e999",
    b"<!--",
    b'<geom size="nan"/>',
)


def broken_bytes(data: bytes, dice: random.Random) -> bytes:
    """A file's bytes with a few of them changed, removed, repeated or added."""
    for _ in range(dice.randint(1, 4)):
        at, size = dice.randrange(len(data) + 1), dice.randint(1, 40)
        piece = dice.choice(
            (
                b"",
                data[at : at + size] * dice.randint(2, 30),
                dice.choice(PIECES),
                dice.randbytes(dice.randint(1, 4)),
            )
        )
        data = data[:at] + piece + data[at + (size if dice.random() < 0.5 else 0) :]
    return data


def broken_value(content: Any, dice: random.Random) -> Any:
    """JSON with one value, anywhere in it, replaced or removed."""
    if not isinstance(content, dict | list) or not content or dice.random() < 0.15:
        return dice.choice(VALUES)
    places = list(content) if isinstance(content, dict) else range(len(content))
    place = dice.choice(places)
    copy = content.copy()
    if dice.random() < 0.1:
        del copy[place]
    else:
        copy[place] = broken_value(copy[place], dice)
    return copy


def broken_tensors(
    tensors: dict[str, torch.Tensor], dice: random.Random
) -> dict[str, torch.Tensor]:
    """Tensors of which one has another shape, type or content, or is gone."""
    name = dice.choice(sorted(tensors))
    tensor = tensors[name]
    changes: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: tensor[..., :0] if tensor.dim() else tensor.reshape(1),
        lambda: tensor.unsqueeze(0).contiguous(),
        lambda: tensor.to(torch.int64) + 10**6,
        lambda: tensor.to(torch.float64) * torch.nan,
        lambda: tensor.to(torch.complex64),
        lambda: -tensor.to(torch.int32) - 1,
        lambda: torch.zeros(3, 1),
        lambda: tensor.to(torch.bool),
        lambda: tensor.to(torch.float8_e4m3fn),
    )
    if dice.random() < 0.1:
        return {key: value for key, value in tensors.items() if key != name}
    return {**tensors, name: dice.choice(changes)()}


# torch's words
NOT_OURS = (
    "Error(s) in loading",
    "failed to unpack",
    "overflowed",
    "not implemented for",
    "allocate",
)


def one_line(read: Callable[[], object]) -> None:
    """Reading gives a result or an InputError of one line, in our words."""
    try:
        read()
    except InputError as error:
        assert str(error).strip() and "\n" not in str(error) and len(str(error)) < 1500
        assert not any(words in str(error) for words in NOT_OURS), error


def artifacts(folder: Path, name: str, load: Callable[[Path], object], dice: random.Random) -> None:
    """Break an artifact's contract, weights' bytes, or tensors with a checksum that fits."""
    work = folder.with_name(f"{folder.name}_broken")
    for _ in range(EXAMPLES):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work)
        description, weights = work / f"{name}.json", work / f"{name}.safetensors"
        content = json.loads(description.read_text())
        kind = dice.randrange(4)
        if kind == 0:
            content = broken_value(content, dice)
        elif kind == 1:
            save_file(broken_tensors(load_file(weights), dice), weights)
        elif kind == 2:
            weights.write_bytes(broken_bytes(weights.read_bytes(), dice))
        if kind in (1, 2):
            content["weights_sha256"] = artifact.sha256(weights)
        try:
            description.write_text(json.dumps(content))
        except ValueError:  # Python does not write numbers of so many digits, others do
            description.write_text('{"version": ' + "9" * 6000 + "}")
        if kind == 3:
            description.write_bytes(broken_bytes(description.read_bytes(), dice))
        one_line(lambda: load(work))


@pytest.fixture
def skill(robot: Robot) -> SkillModule:
    net = NetConfig(latent_dim=3, encoder_width=8, decoder_width=8, lstm_width=4)
    return SkillModule(SkillContract.for_robot(robot, net, context_size=20, context_horizon=2))


def test_modules(skill: SkillModule, robot: Robot, tmp_path: Path) -> None:
    skill.save(
        tmp_path / "m",
        training={"clips": ["a"], "hold": "zero_order", "licences": ["CC0"], "after": {"x": 1.0}},
    )

    def load(folder: Path) -> None:
        loaded = SkillModule.load(folder)
        one_line(lambda: loaded.check_robot(robot))
        one_line(lambda: loaded.check_encoder(robot))

    artifacts(tmp_path / "m", "module", load, random.Random(1))


def test_policies(skill: SkillModule, robot: Robot, tmp_path: Path) -> None:
    net = HighLevelConfig(input_width=4, hidden_width=4, lstm_width=4)
    policy = HighLevelPolicy.for_task(skill, Walk(robot), net=net)
    policy.save(tmp_path / "p", training={"settings": {"phi": 0.5}})
    artifacts(tmp_path / "p", "policy", HighLevelPolicy.load, random.Random(2))


def test_checkpoints(tmp_path: Path) -> None:
    dice = random.Random(3)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    parts: dict[str, state.Part] = {"model": model.state_dict(), "optimizer": optimizer}

    def load() -> None:
        _, tensors, _ = checkpoint.load_latest(tmp_path)
        state.unpack(parts, tensors)

    for step in range(EXAMPLES):
        kind = dice.randrange(3)
        tensors = {name: value.clone() for name, value in state.pack(parts).items()}
        path = checkpoint.save(
            tmp_path,
            step,
            broken_tensors(tensors, dice) if kind == 0 else tensors,
            {"a": 1},
            keep=1,
        )
        if kind:
            broken = path if kind == 1 else path.with_suffix(".json")
            broken.write_bytes(broken_bytes(broken.read_bytes(), dice))
        one_line(load)


@pytest.mark.parametrize("name", ["robot.yaml", "m.xml"])
def test_robots(name: str, tmp_path: Path) -> None:
    dice = random.Random(4)
    text = robots.find("anymal_b").read_text()
    mjcf = robots.load("anymal_b").mjcf
    (tmp_path / "m.xml").write_bytes(mjcf.read_bytes())
    (tmp_path / "robot.yaml").write_text(text.replace(mjcf.name, "m.xml"))
    robots.load(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for _ in range(EXAMPLES):
        (tmp_path / name).write_bytes(broken_bytes(whole, dice))
        one_line(lambda: robots.load(tmp_path))
        one_line(lambda: load(tmp_path / name))
