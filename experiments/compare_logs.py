"""`npmp compare-logs FIRST SECOND`: how two logs of a robot differ, channel by channel."""

from __future__ import annotations

import sys
from dataclasses import asdict

from omegaconf import DictConfig

from mocap_data.files import write_json
from npmp.deploy.comparison import QUANTILES, channels, compare, in_words
from npmp.deploy.run_log import read_log, refuse_other_joints
from npmp.experiments.common import Run, say, verb


def run(config: DictConfig, run: Run) -> None:
    """Compare first= with second=."""
    from npmp.report.logs_page import compared_logs

    first, second = read_log(str(config.first)), read_log(str(config.second))
    refuse_other_joints(first, second)
    one, other = channels(first), channels(second)
    found = compare(one, other)
    run.begin()
    worst = in_words(found)
    content = {
        "first": str(config.first),
        "second": str(config.second),
        "robot": first.robot,
        "worst": worst,
        "quantiles": QUANTILES,
        "channels": [asdict(difference) for difference in found],
        "on_one_side_only": sorted(set(one) ^ set(other)),
    }
    write_json(run.folder / "comparison.json", content)
    compared_logs(run.folder / "comparison.html", first.robot, one, other, found)
    say("the most different channels:", *(f"  {line}" for line in worst))
    say(f"{len(found)} channels compared; tables and page: {run.folder}")


main = verb("compare-logs", run, torch=False, positional=("first", "second"), devices=("cpu",))


if __name__ == "__main__":
    sys.exit(main(None))
