"""`npmp deploy compare-logs FIRST SECOND`: compare two logs of a robot by channel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mocap_data.files import write_json
from npmp.actuators.joint_states import is_joint_states, read_joint_states
from npmp.deploy.controller import ControlMode
from npmp.deploy.log_comparison import QUANTILES, channels, compare, summary_lines
from npmp.deploy.run_log import DeployLog, check_same_joints, layout, read_log
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import say


@dataclass(frozen=True, kw_only=True)
class CompareLogs(Keys):
    """Compare the distributions of two logs' channels while the policy acts: quantiles,
    Kolmogorov-Smirnov, Wasserstein. The most different channels are printed.

    npmp deploy compare-logs runs/robot runs/sim out=runs/gap
    """

    # a log of npmp deploy run or trial, or the folder of its run; or a ROS bag or CSV of
    # /joint_states (docs/actuators.md), of which every sample counts
    first: Path
    # the log to compare with it
    second: Path
    # the folder for comparison.json
    out: Path | None = Path(f"runs/compare-logs/{NOW}")


def run(config: CompareLogs, run: Run) -> None:
    """Compare the logs first= and second=."""
    first = log_of(config.first)
    second = log_of(config.second)
    check_same_joints(first, second)
    first_channels = channels(first)
    second_channels = channels(second)
    differences = compare(first_channels, second_channels)
    worst = summary_lines(differences)
    run.begin()
    content = {
        "first": str(config.first),
        "second": str(config.second),
        "robot": first.robot,
        "worst": worst,
        "quantiles": QUANTILES,
        "channels": [asdict(difference) for difference in differences],
        "on_one_side_only": sorted(set(first_channels) ^ set(second_channels)),
    }
    write_json(run.folder / "comparison.json", content)
    say("the most different channels:", *(f"  {line}" for line in worst))
    say(f"{len(differences)} channels compared: {run.folder / 'comparison.json'}")


def log_of(path: Path) -> DeployLog:
    """A log of npmp or of ROS. Raises InputError."""
    if not is_joint_states(path):
        return read_log(path)
    joints = read_joint_states(path, all_states=True)
    names = tuple(map(str, joints["actuators"]))
    shapes = {name: (len(joints["time_s"]), n) for name, n in layout(len(names), 0).items()}
    columns = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    columns["mode"][:] = ControlMode.POLICY
    arrays = ("joint_pos", "joint_vel", "joint_torque", "target")
    for name, channel in zip(arrays, ("position", "velocity", "torque", "command")):
        columns[name] = joints.get(channel, columns[name])
    return DeployLog(path.stem, names, (), np.nan, "ROS", columns)


main = Verb(
    "deploy compare-logs",
    CompareLogs,
    run,
    torch=False,
    positional=("first", "second"),
    devices=("cpu",),
)
