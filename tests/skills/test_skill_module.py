"""The skill module on disk: the same after a round trip, refused when anything does not fit, and
never a program."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from npmp import SkillModule
from npmp.robots import Robot
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillContract
from tests.refusals import refusal

NET = NetConfig(latent_dim=5, encoder_width=12, decoder_width=10, lstm_width=7)


@pytest.fixture
def module(robot: Robot) -> SkillModule:
    torch.manual_seed(0)
    made = SkillModule(SkillContract.for_robot(robot, NET, context_size=40, context_horizon=5))
    made.observation_scale.fit(torch.randn(100, 33), 0.1)
    made.context_scale.fit(3.0 + torch.randn(100, 40), 0.1)
    torch.nn.init.normal_(made.decoder.head.weight)
    return made


@pytest.fixture
def folder(module: SkillModule, tmp_path: Path) -> Path:
    module.save(tmp_path / "module", training={"seed": 3, "licences": ["CC0"]})
    return tmp_path / "module"


def change(folder: Path, **values: Any) -> None:
    path = folder / "module.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_round_trip_changes_nothing(module: SkillModule, folder: Path) -> None:
    loaded = SkillModule.load(folder)
    assert not loaded.training
    assert (loaded.robot, loaded.latent_dim, loaded.prior.alpha) == ("anymal_b", 5, 0.95)
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    z, seen, context = torch.randn(4, 5), torch.randn(4, 33), torch.randn(4, 40)
    with torch.no_grad():
        for a, b in (
            (
                module.decode(z, seen, module.initial_state(4)),
                loaded.decode(z, seen, loaded.initial_state(4)),
            ),
            (module.encode(context, z), loaded.encode(context, z)),
        ):
            assert torch.equal(a[0], b[0])


def test_in_joint_space_a_module_is_a_scale(
    module: SkillModule, robot: Robot, tmp_path: Path
) -> None:
    module.contract.training.update(
        {"hold": "first_order", "command_range": [[0, 1]] * 3, "clips": ["walk"]}
    )
    made = module.in_joint_space()
    assert (made.latent_dim, made.prior.alpha, made.hold) == (12, 0.0, "first_order")
    assert made.contract.training == {"hold": "first_order", "command_range": [[0, 1]] * 3}
    made.save(tmp_path)
    loaded = SkillModule.load(tmp_path)
    z, seen = torch.randn(4, 12), torch.randn(4, 33)
    before = loaded.initial_state(4)
    action, memory = loaded.decode(z, seen, before)
    assert torch.equal(action, 0.5 * z) and memory is before
    assert torch.equal(loaded.observation_scale(seen), module.observation_scale(seen))
    loaded.check_robot(robot)
    refusal("has no encoder", loaded.check_encoder, robot)
    change(tmp_path, decoder="magic")
    refusal("decoder", SkillModule.load, tmp_path)
    change(tmp_path, decoder="joints", net=dataclasses.asdict(NET))
    refusal("latent_dim 12, got 5", SkillModule.load, tmp_path)


def test_half_precision_is_stored_and_float32_comes_back(
    module: SkillModule, tmp_path: Path
) -> None:
    module.save(tmp_path / "half", dtype="float16")
    loaded = SkillModule.load(tmp_path / "half")
    assert loaded.contract.weights_dtype == "float16"
    for name, value in module.state_dict().items():
        weight = name.startswith(("encoder.", "decoder."))
        assert torch.equal(loaded.state_dict()[name], value.half().float() if weight else value), (
            name
        )
    loaded.save(tmp_path / "again")  # nothing is rounded twice
    assert SkillModule.load(tmp_path / "again").contract.weights_dtype == "float32"
    torch.nn.init.constant_(module.decoder.head.weight, 1e5)
    refusal("float16", module.save, tmp_path / "half", dtype="float16")
    refusal("no dtype 'int8'", module.save, tmp_path / "half", dtype="int8")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"net": {"latent_dim": 10**9}}, r"net\.latent_dim=1000000000"),
        ({"net": {"encoder_width": 10**15, "latent_dim": 10**15}}, r"module\.json"),
        ({"net": {"alpha": float("nan")}}, "alpha must be a finite number, got nan"),
        ({"context_horizon": 10**9}, "context_horizon"),
        ({"joint_names": "abc"}, "joint_names must be a list"),
        ({"observation": [["a", 10**12]]}, r"observation\[0\]\[1\]=1000000000000"),
        ({"kp": [float("inf")] * 12}, r"kp\[0\] must be a finite number"),
        ({"weights_dtype": "int8"}, "weights_dtype"),
        ({"training": {"hold": "jump"}}, "hold must be one of zero_order, first_order"),
        ({"weights_sha256": 5}, "sha256"),
    ],
)
def test_values_of_other_kinds_and_sizes_are_refused_before_anything_is_made(
    folder: Path, values: dict[str, Any], message: str
) -> None:
    net = dataclasses.asdict(NET)
    if isinstance(values.get("net"), dict):
        values = {"net": net | values["net"]}
    change(folder, **values)
    assert len(refusal(message, SkillModule.load, folder)) < 500


def test_a_lacking_entry_is_named_and_an_added_one_ignored(folder: Path) -> None:
    change(folder, something_new=1)
    SkillModule.load(folder)
    content = json.loads((folder / "module.json").read_text())
    del content["home_pose"]
    (folder / "module.json").write_text(json.dumps(content))
    refusal("lacks home_pose", SkillModule.load, folder)


def test_other_robots_are_refused_by_what_differs(module: SkillModule, robot: Robot) -> None:
    module.check_robot(robot)
    renamed = dataclasses.replace(robot, name="anymal_c")
    refusal("robot is anymal_b, but for 'anymal_c'", module.check_robot, renamed)
    other_model = dataclasses.replace(robot, model_sha256="0" * 64)
    refusal("model_sha256", module.check_robot, other_model)


@pytest.mark.parametrize(
    ("key", "value"), [("kp", [1.0] * 12), ("home_pose", [9.0] * 12), ("control_rate_hz", 100.0)]
)
def test_a_contract_that_the_robot_does_not_keep_is_refused(
    folder: Path, robot: Robot, key: str, value: Any
) -> None:
    change(folder, **{key: value})
    refusal(key, SkillModule.load(folder).check_robot, robot)


def test_an_encoder_for_other_features_is_refused(module: SkillModule, robot: Robot) -> None:
    with pytest.raises(InputError, match=r"context_size is 40, but 5 frames ahead make 304"):
        # 5 (3 (9 points + 4 axes and velocities) + 12 joints) + 49 of the true state
        module.check_encoder(robot)


def test_loading_never_unpickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in the weights' place is refused unread: it would run code."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("code from a module file was run",))

    (folder / "module.safetensors").write_bytes(pickle.dumps(Bomb()))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("pickle was used"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was used"))
    refusal("", SkillModule.load, folder)


def test_saving_over_a_module_is_atomic(
    module: SkillModule, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("npmp.core.artifact.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        module.save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
