"""A setting has one default: what a command reads from conf/ is what the dataclass has; and what is
refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mocap_data.errors import InputError
from npmp.deploy.controller import ControllerConfig
from npmp.deploy.robot_server import SimulatedConfig
from npmp.deploy.safety import SafetyConfig
from npmp.envs import RobotBatchConfig
from npmp.evaluation.policy import PolicyEvaluationConfig
from npmp.imitation import DistillConfig, MOVMPOConfig, PPOConfig
from npmp.nets.high_level import HighLevelConfig
from npmp.nets.skill_nets import NetConfig
from npmp.reuse import CloneTrainerConfig, ModelTrainerConfig, VMPOTrainerConfig
from npmp.settings import from_mapping
from npmp.tasks import DribbleConfig, ImitationConfig, WalkConfig
from npmp.tasks.path import PathConfig
from npmp.tasks.recover import RecoverConfig
from npmp.training.imitation import NUM_ENVS, ImitationSettings
from npmp.training.reuse import REUSE_ENVS, ReuseSettings
from npmp.world_model.trainer import WorldModelConfig
from retarget import CleanOptions, Options
from retarget.joint_map import JointOptions

CONF = Path(__file__).resolve().parents[1] / "conf"

# Keys of a YAML that are no fields, and why.
NO_FIELDS = {"algo": {"num_envs": "the environment's, which the trainer is given"}}
# Fields that are no keys of the YAML, and why.
NO_KEYS = {
    "algo/mo_vmpo": {
        "learner.regularizer_weight": "beta, which the trainer sets at every iteration"
    },
    "algo/vmpo": {"learner.objectives": "the task's, which the trainer asks it for"},
}


def flat(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested mappings by dotted keys; lists as tuples."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{at}{key}.")
        else:
            found[f"{at}{key}"] = as_tuple(value)
    return found


def as_tuple(value: Any) -> Any:
    return tuple(as_tuple(part) for part in value) if isinstance(value, list) else value


def yaml_of(name: str) -> dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    assert isinstance(values, dict)
    own = {str(key): value for key, value in values.items() if key not in ("name", "defaults")}
    built_on = [
        base for base in values.get("defaults", ()) if isinstance(base, str) and base != "_self_"
    ]
    if "/" in name:  # a choice of a group, maybe built on another
        for base in built_on:
            own = yaml_of(f"{name.rpartition('/')[0]}/{base}") | own
    return own


def exempt(name: str, table: dict[str, dict[str, str]]) -> set[str]:
    return {
        key for at, keys in table.items() if name == at or name.startswith(f"{at}/") for key in keys
    }


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("algo/world_model+algo/in_imitate/world_model", WorldModelConfig),
        ("algo/world_model+algo/in_reuse/world_model", ModelTrainerConfig),
        ("algo/mo_vmpo", MOVMPOConfig),
        ("algo/ppo", PPOConfig),
        ("algo/distill", DistillConfig),
        ("algo/vmpo", VMPOTrainerConfig),
        ("algo/clone", CloneTrainerConfig),
        ("net/small", NetConfig),
        ("high_level/small", HighLevelConfig),
        ("task/imitation", ImitationConfig),
        ("task/walk", WalkConfig),
        ("task/path", PathConfig),
        ("task/dribble", DribbleConfig),
        ("task/recover", RecoverConfig),
    ],
)
def test_the_yaml_and_the_dataclass_say_the_same(name: str, cls: type) -> None:
    written = {key: value for part in name.split("+") for key, value in flat(yaml_of(part)).items()}
    defaults = flat(dataclasses.asdict(cls()))
    extra, absent = exempt(name, NO_FIELDS), exempt(name, NO_KEYS)
    assert extra <= set(written) and all(
        any(key.split(".")[0] == a or key == a for key in defaults) for a in absent
    )
    fields = {key for key in defaults if key not in absent and key.split(".")[0] not in absent}
    assert set(written) - extra == fields
    differ = {key: (written[key], defaults[key]) for key in fields if written[key] != defaults[key]}
    assert not differ


@pytest.mark.parametrize(
    "path", sorted((CONF / "randomization").rglob("*.yaml")), ids=lambda path: path.stem
)
def test_every_randomization_is_one(path: Path) -> None:
    from_mapping(
        RobotBatchConfig, yaml_of(str(path.relative_to(CONF).with_suffix(""))), at="randomization"
    )


@pytest.mark.parametrize(
    ("name", "cls"), [("net/paper", NetConfig), ("high_level/paper", HighLevelConfig)]
)
def test_the_paper_s_sizes_name_every_setting(name: str, cls: type) -> None:
    assert set(yaml_of(name)) == {field.name for field in dataclasses.fields(cls)}
    from_mapping(cls, yaml_of(name))


def test_no_randomization_is_what_the_library_does_without_a_word() -> None:
    """Its groups are empty in the YAML: an ideal robot is the dataclasses' own default."""
    assert (
        from_mapping(RobotBatchConfig, yaml_of("randomization/none"), at="randomization")
        == RobotBatchConfig()
    )
    paper = yaml_of("randomization/paper")
    # where everything is written out
    for group, defaults in dataclasses.asdict(RobotBatchConfig()).items():
        assert group in ("hold", "accelerometer", "actuator") or set(flat(paper[group])) == set(
            flat(defaults)
        )


def test_the_options_of_retargeting_are_its_keys() -> None:
    """Each field a key, with its default. The options of method=joints have names of their own,
    those that npmp.experiments.retarget.joint_options gives them."""
    written = flat(yaml_of("retarget"))
    for cls in (Options, CleanOptions):
        defaults = dataclasses.asdict(cls())
        assert set(defaults) <= set(written)
        assert not {
            key: (written[key], value) for key, value in defaults.items() if written[key] != value
        }
    joints = JointOptions()
    pairs = {
        "rate_hz": "rate_hz", "time_scale": "time_scale", "cutoff_hz": "marker_cutoff_hz",
        "root_cutoff_hz": "root_cutoff_hz", "lock_feet": "lock_feet",
        "joint_speed_share": "joint_speed_share",
    }  # fmt: skip
    assert {field: written[key] for field, key in pairs.items()} == {
        field: getattr(joints, field) for field in pairs
    }


def test_how_much_a_policy_is_tried_is_its_command_s() -> None:
    defaults = dataclasses.asdict(PolicyEvaluationConfig())
    assert flat(yaml_of("evaluate")["evaluation"]) == defaults


def test_the_library_s_number_of_robots_is_the_commands_of_every_algorithm() -> None:
    for verb, numbers in (("imitate", NUM_ENVS), ("reuse", REUSE_ENVS)):
        for name, number in numbers.items():
            place = (
                f"algo/in_{verb}/{name}"
                if (CONF / f"algo/in_{verb}/{name}.yaml").exists()
                else f"algo/{name}"
            )
            assert yaml_of(place)["num_envs"] == number


@pytest.mark.parametrize(
    ("section", "cls"),
    [("controller", ControllerConfig), ("safety", SafetyConfig), ("sim", SimulatedConfig)],
)
def test_what_a_robot_is_held_to_is_the_command_s(section: str, cls: type) -> None:
    assert yaml_of("deploy")[section] == dataclasses.asdict(cls())


# Of each training settings' field of another name its key in the verb's YAML.
KEYS_OF_VERBS = {
    "evaluate_every": "evaluation.every", "evaluation_starts": "evaluation.starts",
    "evaluation_robots": "evaluation.robots", "evaluation_seconds": "evaluation.seconds", "num_threads": "threads",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cls"), [("imitate", ImitationSettings), ("reuse", ReuseSettings)]
)
def test_a_training_run_from_python_is_the_commands(name: str, cls: type) -> None:
    """Every field that is a plain value and a key of the verb's YAML, too."""
    written, defaults = flat(yaml_of(name)), dataclasses.asdict(cls())
    written["threads"] = written["threads"] or 0  # null: all cores, which the library calls 0
    pairs = {field: KEYS_OF_VERBS.get(field, field) for field in defaults}
    pairs = {field: key for field, key in pairs.items() if key in written}
    assert {
        "steps",
        "evaluate_every",
        "checkpoint_every",
        "logger",
        "sim",
        "device",
        "num_threads",
    } <= set(pairs)
    assert not [
        key for key in written if key.startswith("evaluation.") and key not in pairs.values()
    ]
    differ = {
        key: (written[key], defaults[field])
        for field, key in pairs.items()
        if written[key] != defaults[field]
    }
    assert not differ


# --- from_mapping


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    sizes: tuple[int, ...] = (8,)


@dataclasses.dataclass(frozen=True)
class Outer:
    needed: int
    on: bool = True
    word: str = "a"
    span: tuple[float, float] = (0.0, 1.0)
    ranges: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0))
    limit: float | None = None
    auto: float | str = "auto"
    pair: tuple[float, float] | None = None
    weights: Mapping[str, float] | None = None
    inner: Inner = dataclasses.field(default_factory=lambda: Inner(rate=0.25))

    def __post_init__(self) -> None:
        if self.needed < 0:
            raise ValueError(f"needed must be at least 0, got {self.needed}")


def test_values_become_what_the_annotations_say() -> None:
    made = from_mapping(
        Outer,
        {
            "needed": 3, "span": [0, 2], "ranges": [[0, 1], [2, 3]], "limit": 1, "auto": 2, "pair": [1, 2],
            "weights": {"foot": 1}, "inner": {"sizes": [4, 5]}, "name": "x",
        },
        ignore=("name",),
    )  # fmt: skip
    assert made == Outer(
        3, span=(0.0, 2.0), ranges=((0.0, 1.0), (2.0, 3.0)), limit=1.0, auto=2.0, pair=(1.0, 2.0),
        # rate: what the field defaults to, not the class
        weights={"foot": 1.0}, inner=Inner(rate=0.25, sizes=(4, 5)),
    )  # fmt: skip
    assert isinstance(made.span[0], float) and made.ranges[1] == (2.0, 3.0)
    assert from_mapping(
        Outer, {"needed": 1, "limit": None, "auto": "x", "inner": Inner(0.1)}
    ).inner == Inner(0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"on": 1}, "run.on must be true or false, got 1"),
        ({"needed": True}, "run.needed must be a whole number, got true"),
        ({"needed": 1.0}, "run.needed must be a whole number, got 1.0"),
        ({"needed": 10**30}, "run.needed must be a number of less than 19 digits, got 1000"),
        (
            {"needed": 10**6000},
            "run.needed must be a number of less than 19 digits, got a int too long to show",
        ),
        ({"needed": None}, "run.needed must be a whole number, got null"),
        ({"limit": "1"}, "run.limit must be a finite number or null, got '1'"),
        ({"limit": float("nan")}, "run.limit must be a finite number or null, got nan"),
        ({"limit": 10**400}, "run.limit must be a finite number"),
        ({"limit": False}, "run.limit must be a finite number or null, got false"),
        ({"auto": []}, "run.auto must be a finite number or text, got []"),
        ({"word": 3}, "run.word must be text, got 3"),
        ({"span": [1.0]}, "run.span must be a list of 2, each a finite number, got [1.0]"),
        ({"span": 1.0}, "run.span must be a list of 2, each a finite number, got 1.0"),
        ({"span": [0.0, float("inf")]}, "run.span[1] must be a finite number, got inf"),
        ({"ranges": [[0, 1], [0, "x"]]}, "run.ranges[1][1] must be a finite number, got 'x'"),
        ({"pair": [1, "x"]}, "run.pair[1] must be a finite number, got 'x'"),
        ({"weights": {"foot": None}}, "run.weights.foot must be a finite number, got null"),
        ({"weights": 3}, "run.weights must be a mapping or null, got 3"),
        ({"inner": None}, "run.inner must be a mapping, got null"),
        ({"inner": {"sizes": [1, 2.5]}}, "run.inner.sizes[1] must be a whole number, got 2.5"),
        ({"inner": {"size": 1}}, "run.inner has no setting 'size'; there are: rate, sizes"),
        ({"other": 1}, "run has no setting 'other'; there are: needed, on, word"),
        ({"needed": -1}, "run: needed must be at least 0, got -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        from_mapping(Outer, {"needed": 1, **wrong}, at="run")
    assert str(error.value).startswith(message)


def test_a_setting_without_a_default_is_missed() -> None:
    with pytest.raises(InputError, match="Outer lacks needed; its settings are: needed, on"):
        from_mapping(Outer, {})
    with pytest.raises(InputError, match="run must be a mapping, got 3"):
        from_mapping(Outer, 3, at="run")  # type: ignore[arg-type]


def test_a_value_of_any_depth_is_shown_in_a_line() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError) as error:
        from_mapping(Inner, {"rate": deep})
    assert len(str(error.value)) < 200
