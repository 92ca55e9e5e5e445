"""`npmp deploy compare-logs FIRST SECOND`: how two logs of a robot differ, channel by channel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from mocap_data.files import write_json
from npmp.deploy.comparison import QUANTILES, channels, compare, in_words
from npmp.deploy.run_log import read_log, refuse_other_joints
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import say


@dataclass(frozen=True, kw_only=True)
class CompareLogs(Keys):
    """Compare two logs by how their channels are distributed while the policy acts: quantiles,
    Kolmogorov-Smirnov, Wasserstein; the three worst are named.

    npmp deploy compare-logs runs/robot runs/sim out=runs/gap
    """

    # a log of npmp deploy run or trial, or the folder of its run
    first: Path
    # the same, compared with the first
    second: Path
    # the folder for comparison.json and comparison.html
    out: Path | None = Path(f"runs/compare-logs/{NOW}")


def run(config: CompareLogs, run: Run) -> None:
    """Compare first= with second=."""
    from npmp.view.report.logs_page import compared_logs

    first, second = read_log(config.first), read_log(config.second)
    refuse_other_joints(first, second)
    one = channels(first)
    other = channels(second)
    differences = compare(one, other)
    run.begin()
    content = {
        "first": str(config.first),
        "second": str(config.second),
        "robot": first.robot,
        "worst": in_words(differences),
        "quantiles": QUANTILES,
        "channels": [asdict(difference) for difference in differences],
        "on_one_side_only": sorted(set(one) ^ set(other)),
    }
    write_json(run.folder / "comparison.json", content)
    compared_logs(run.folder / "comparison.html", first.robot, one, other, differences)
    say("the most different channels:", *(f"  {line}" for line in in_words(differences)))
    say(f"{len(differences)} channels compared; tables and page: {run.folder}")


main = Verb(
    "deploy compare-logs",
    CompareLogs,
    run,
    torch=False,
    positional=("first", "second"),
    devices=("cpu",),
)
