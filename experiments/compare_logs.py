"""`npmp deploy compare-logs FIRST SECOND`: compare two logs of a robot by channel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from mocap_data.files import write_json
from npmp.deploy.log_comparison import QUANTILES, channels, compare, summary_lines
from npmp.deploy.run_log import check_same_joints, read_log
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import say


@dataclass(frozen=True, kw_only=True)
class CompareLogs(Keys):
    """Compare the distributions of two logs' channels while the policy acts: quantiles,
    Kolmogorov-Smirnov, Wasserstein. The most different channels are printed.

    npmp deploy compare-logs runs/robot runs/sim out=runs/gap
    """

    # a log of npmp deploy run or trial, or the folder of its run
    first: Path
    # the log to compare with it
    second: Path
    # the folder for comparison.json
    out: Path | None = Path(f"runs/compare-logs/{NOW}")


def run(config: CompareLogs, run: Run) -> None:
    """Compare the logs first= and second=."""
    first = read_log(config.first)
    second = read_log(config.second)
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


main = Verb(
    "deploy compare-logs",
    CompareLogs,
    run,
    torch=False,
    positional=("first", "second"),
    devices=("cpu",),
)
