"""The leaderboard: policies x scenarios, from finished runs of `npmp evaluate suite`.

    python -m npmp.experiments.benchmarks.leaderboard policies.yaml runs/board/* > board.md

Per robot two tables in Markdown: success, gait, energy and falls, the best mean success first; and
the sources. policies.yaml has a mapping of `COLUMNS` for each folder's name.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.input_files import read_json_object
from mocap_data.safe_yaml import read_yaml
from npmp.experiments.benchmarks import markdown_table
from npmp.experiments.terminal import guarded

# of a policy's description; date: of the commit or the file
COLUMNS = ("policy", "source", "commit", "date", "licence")
# the scenario of the energy
ENERGY = "flat_forward"


def read_runs(policies: Path, folders: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The suites with their policies' `about`, by robot; the best mean success first.

    Raises:
      InputError: for a folder without suite.json or description, and for suites of one robot that
        differ in trials, seed, scenarios or criterion.
    """
    descriptions = read_yaml(policies)
    robots: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        about = descriptions.get(folder.name) if isinstance(descriptions, Mapping) else None
        if not isinstance(about, Mapping) or set(about) != set(COLUMNS):
            raise InputError(f"{policies}: {folder.name}: expected keys {', '.join(COLUMNS)}")
        run = read_json_object(folder / "suite.json") | {"about": about}
        scenarios = run.get("scenarios")
        if "robot" not in run or not scenarios or any("gait" not in row for row in scenarios):
            raise InputError(
                f"{folder / 'suite.json'}: expected robot, and scenarios with their gait; run "
                "npmp evaluate suite again"
            )
        others = robots.setdefault(Path(run["robot"]).name, [])
        if others and _conditions(run) != _conditions(others[0]):
            raise InputError(
                f"{folder}: trials, seed, success or scenarios differ from those of"
                f" {others[0]['about']['policy']}; run both with the same keys"
            )
        others.append(run)
    for runs in robots.values():
        runs.sort(key=lambda run: (-mean_success(run), str(run["about"]["policy"])))
    return dict(sorted(robots.items()))


def _conditions(run: Mapping[str, Any]) -> list[Any]:
    scenarios = {row["name"]: row["settings"] for row in run["scenarios"]}
    return [*(run[key] for key in ("trials", "seed", "randomization", "success")), scenarios]


def mean_success(run: Mapping[str, Any]) -> float:
    """Of all scenarios."""
    shares = [row["success"] for row in run["scenarios"]]
    return float(sum(shares) / len(shares))


def scores(runs: Sequence[Mapping[str, Any]]) -> str:
    """A line per policy; "s": its feet skate, "c": the command is clipped to its range."""
    names = [row["name"] for row in runs[0]["scenarios"]]
    measures = ("lift [cm]", "stance [m/s]", "energy [J/m]", "power [W]", "falls", "red flags")
    lines = []
    for run in runs:
        rows = run["scenarios"]
        cells = [
            f"{row['success']:.2f}{' s' * bool(row.get('skating'))}{' c' * row['scaled']}"
            for row in rows
        ]
        # the scenarios on flat ground that only set a command
        gaits = [row["gait"] for row in rows if "skating" in row and row["gait"]]
        effort = next((row["effort"] for row in rows if row["name"] == ENERGY), None)
        measured = (
            f"{100.0 * min(gait['foot_lift_m'] for gait in gaits):.1f}" if gaits else "-",
            f"{max(gait['stance_mps'] for gait in gaits):.2f}" if gaits else "-",
            f"{effort['energy_j_per_m']:.0f}" if effort else "-",
            f"{effort['mechanical_power_w']:.0f}" if effort else "-",
            str(round(sum(row["fell"] * row["trials"] for row in rows))),
            ", ".join(flag["name"] for flag in run["red_flags"] if flag["raised"]),
        )
        passed = f"{sum(row['passed'] for row in rows)}/{len(rows)}"
        mean = f"{mean_success(run):.2f}"
        lines.append([run["about"]["policy"], mean, passed, *cells, *measured])
    return markdown_table(["policy", "mean", "passed", *names, *measures], lines)


def sources(runs: Sequence[Mapping[str, Any]]) -> str:
    """The descriptions of the policies, and the ranges of their commands."""
    lines = []
    for run in runs:
        ranges = ", ".join(f"{low:g} to {high:g}" for low, high in run["command_range"])
        lines.append([*(str(run["about"][key]) for key in COLUMNS), ranges])
    return markdown_table([*COLUMNS, "commands [m/s, m/s, rad/s]"], lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables. Returns the exit code."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("policies", type=Path, help="YAML of the policies by folder name")
    options.add_argument("folders", type=Path, nargs="+", help="with suite.json")
    args = options.parse_args(arguments)
    with guarded() as outcome:
        for robot, runs in read_runs(args.policies, args.folders).items():
            sys.stdout.write(f"## {robot}\n\n{scores(runs)}\n{sources(runs)}\n")
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
