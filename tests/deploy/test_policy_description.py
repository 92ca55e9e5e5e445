"""Descriptions of other projects' policies: metadata, deploy.yaml, and a YAML file beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from npmp.deploy import mjlab
from npmp.deploy.contract import Command
from npmp.deploy.policy_description import KEYS, PolicyDescription, from_metadata, read_description
from tests.deploy.standins import contract_of
from tests.refusals import refusal

# mjlab's
METADATA = {
    "run_path": "2026-04-29",
    "joint_names": "hip,knee",
    "joint_stiffness": "20.000,40.000",
    "joint_damping": "1.000,2.000",
    "default_joint_pos": "0.100,-0.200",
    "command_names": "twist",
    "observation_names": "base_ang_vel,command,joint_pos,actions",
    "action_scale": "0.25",
}
# what mjlab's metadata lack
REST = {
    "step_dt": 0.02,
    "command_ranges": {"lin_vel_x": [-1, 1], "lin_vel_y": [0, 0], "ang_vel_z": [-2, 2]},
}
MOTORS = ["knee", "hip"]
# in the order of the policy: hip, knee; the gains in that of MOTORS
DEPLOY = """
joint_ids_map: [1, 0]
step_dt: 0.02
stiffness: [40.0, 20.0]
damping: [2.0, 1.0]
default_joint_pos: [0.1, -0.2]
commands:
  base_velocity:
    ranges: {lin_vel_x: [-0.5, 1.0], lin_vel_y: [-0.3, 0.3], ang_vel_z: [-0.2, 0.2], heading: null}
actions:
  JointPositionAction:
    clip: [[-1.0, 1.0], [-2.0, 2.0]]
    scale: [0.25, 0.5]
    offset: [0.0, 0.1]
    joint_ids: !!python/object/apply:builtins.slice [null, null, null]
observations:
  use_gym_history: true
  base_ang_vel: {params: {}, clip: [-3.0, 3.0], scale: [0.2, 0.2, 0.2], history_length: 5}
  gait_phase: {params: {period: 0.6}, clip: null, scale: [1.0, 1.0], history_length: 5}
  last_action: {params: {}, clip: null, scale: null, history_length: 5}
"""


def described(
    folder: Path, metadata: dict[str, str] | None = None, **own: Any
) -> PolicyDescription:
    """The description of a policy with `own` beside it."""
    if own:
        (folder / "policy.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    return read_description(folder / "policy.onnx", metadata or {}, MOTORS)


def test_mjlabs_metadata(tmp_path: Path) -> None:
    d = described(tmp_path, METADATA, **REST)
    assert d.joint_names == ("hip", "knee")
    assert d.joint_stiffness.tolist() == [20.0, 40.0] and d.joint_damping.tolist() == [1.0, 2.0]
    # one number for all joints; targets are relative to the default pose
    assert d.action_scale.tolist() == [0.25, 0.25] and d.action_offset.tolist() == [0.1, -0.2]
    assert d.command_range.tolist() == [[-1.0, 1.0], [0.0, 0.0], [-2.0, 2.0]]
    names = ["base_ang_vel", "velocity_commands", "joint_pos_rel", "last_action"]
    assert [term.name for term in d.terms] == names
    assert d.width == 3 + 3 + 2 + 2


def test_histories_in_metadata(tmp_path: Path) -> None:
    """Isaac Lab's trackers write a length per term, some as floats, and 0 for one frame."""
    metadata = METADATA | {"observation_history_lengths": "5.0,0,1,2"}
    d = described(tmp_path, metadata, **REST)
    assert [term.history_length for term in d.terms] == [5, 1, 1, 2]
    assert d.width == 3 * 5 + 3 + 2 + 2 * 2


def test_holosomas_metadata() -> None:
    """JSON, with other names."""
    metadata = {"dof_names": '["hip", "knee"]', "kp": "[20.0, 40.0]", "command_ranges": "null"}
    assert from_metadata(metadata, "x") == {
        "joint_names": ["hip", "knee"],
        "joint_stiffness": [20.0, 40.0],
    }


def test_a_deploy_yaml(tmp_path: Path) -> None:
    """In ../params, as unitree_rl_lab has it: gains by motor, the rest by joint of the policy."""
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "deploy.yaml").write_text(DEPLOY)
    (tmp_path / "exported").mkdir()
    d = described(tmp_path / "exported")
    assert d.joint_names == ("hip", "knee")
    assert d.joint_stiffness.tolist() == [20.0, 40.0] and d.joint_damping.tolist() == [1.0, 2.0]
    assert d.action_scale.tolist() == [0.25, 0.5] and d.action_offset.tolist() == [0.0, 0.1]
    assert d.action_clip.tolist() == [[-1.0, 1.0], [-2.0, 2.0]]
    assert d.use_gym_history and not d.newest_first and d.step_dt == 0.02
    gyro, phase, action = d.terms
    assert gyro.clip == (-3.0, 3.0) and gyro.scale.tolist() == [0.2, 0.2, 0.2]
    assert phase.period_s == 0.6 and action.scale.tolist() == [1.0, 1.0]
    assert d.width == (3 + 2 + 2) * 5


def test_our_own_export(tmp_path: Path) -> None:
    """What `format=mjlab` writes is read as it was: names, gains and ranges."""
    commands = [Command(f"c{k}_mps", "m/s", [-1.0, 1.0]) for k in range(3)]
    contract = replace(contract_of("unitree_go2"), commands=commands, hold="zero_order")
    (tmp_path / "deploy.yaml").write_text(yaml.safe_dump(mjlab.deploy_settings(contract)))
    metadata = mjlab._metadata(contract)
    motors = mjlab.MOTORS["unitree_go2"][1]
    d = read_description(tmp_path / "policy.onnx", metadata, motors)
    assert list(d.joint_names) == contract.joint_names
    np.testing.assert_allclose(d.joint_stiffness, contract.per_joint("kp"))
    np.testing.assert_allclose(d.default_joint_pos, contract.home_pose, atol=1e-6)
    assert d.command_range.tolist() == [[-1.0, 1.0]] * 3


def test_the_file_beside_wins(tmp_path: Path) -> None:
    (tmp_path / "deploy.yaml").write_text(DEPLOY)
    assert described(tmp_path, step_dt=0.01).step_dt == 0.01


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    own = {**from_metadata(METADATA, "x"), **REST}
    del own[key]
    line = refusal(f"missing {key}", described, tmp_path, **own)
    assert "policy.yaml" in line and sum(other in line for other in KEYS) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"joint_stifness": 1}, "joint_stifness"),
        ({"joint_damping": -1.0}, "joint_damping"),
        ({"default_joint_pos": [0.0, 0.0, 0.0]}, "default_joint_pos"),
        ({"step_dt": 2.0}, "step_dt"),
        ({"command_ranges": {"lin_vel_x": [0, 1], "lin_vel_y": [0, 1]}}, "command_ranges"),
        ({"observations": {"height_scan": {}}}, "observations.height_scan"),
        ({"observations": {"base_ang_vel": {"scales": 2}}}, "scales"),
        ({"observations": {"base_ang_vel": {"scale": [1, 2]}}}, "observations.base_ang_vel.scale"),
        ({"observations": {"phase": {}}}, "observations.phase.params.period"),
        (
            {
                "observations": {
                    "use_gym_history": True,
                    "command": {"history_length": 2},
                    "joint_pos": {},
                }
            },
            "use_gym_history",
        ),
        ({"joint_names": ["knee", "hip"]}, "joint_names"),
        # a limit of one number would be a constant
        ({"command_ranges": 1.0}, "command_ranges"),
        ({"action_clip": 3.0}, "action_clip"),
        ({"observations": {"base_ang_vel": {"clip": 100}}}, "observations.base_ang_vel.clip"),
        ({"observations": {"base_ang_vel": {"clip": [5, -5]}}}, "observations.base_ang_vel.clip"),
        ({"observations": {"base_ang_vel": 0.25}}, "observations.base_ang_vel"),
        ({"observations": {"phase": {"params": 0.8}}}, "observations.phase"),
        ({"observations": {"phase": {"params": {"period": 0}}}}, "observations.phase.params"),
        ({"observations": {"command": {"history_length": "five"}}}, "history_length"),
        ({"observations": {"command": {"history_length": -3}}}, "history_length"),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    refusal(key, described, tmp_path, METADATA, **{**REST, **changes})


def test_histories_of_other_observations() -> None:
    lengths = METADATA | {"observation_history_lengths": "1,2"}
    refusal("observation_history_lengths", from_metadata, lengths, "x")


def test_a_policy_that_follows_a_motion() -> None:
    refusal("command_names", from_metadata, METADATA | {"command_names": "motion"}, "x")


def test_a_deploy_yaml_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "deploy.yaml").write_text("joint_ids_map: [0]\nactions: {JointVelocityAction: {}}")
    refusal("JointVelocityAction", described, tmp_path)
    (tmp_path / "deploy.yaml").write_text("joint_ids_map: [0]\n")
    refusal("deploy.yaml", described, tmp_path)
