"""`npmp evaluate suite`: evaluate a walking policy in the scenarios of sim-to-real practice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import robots
from npmp.core import ranges
from npmp.evaluation import dead_zones, suite
from npmp.evaluation.handover import load_recovery
from npmp.evaluation.policy import teacher_of
from npmp.experiments.backend import Simulating, evaluation_record, policy_of, report_other_drives
from npmp.experiments.command import NOW, Run, Verb, provenance_of
from npmp.experiments.store import group
from npmp.experiments.terminal import NOT_PASSED, OK, progress_bar, say, show_table
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import over
from npmp.tasks.commands import as_command_range
from npmp.tasks.walk import Walk
from npmp.view.report import suite_page


@dataclass(frozen=True, kw_only=True)
class Suite(Simulating):
    """Evaluate a walking policy in the scenarios of sim-to-real practice, with red flags and
    remedies; write suite.json and suite.html. Exit code: 0 if all pass, otherwise 3.

    npmp evaluate suite policy=anymal_b_walk out=runs/suite
    npmp evaluate suite policy=runs/reuse/policy scenarios=[flat_forward,slope_up]
    randomization=paper out=runs/suite
    npmp evaluate suite policy=anymal_b_walk recovery=anymal_b_recover scenarios=[fallen_start]
    out=runs/suite
    npmp evaluate suite policy=op3_walk scenario.strong_push.push.force_n=8 out=runs/suite
    """

    # default settings of the task in all scenarios
    task: Any = group("walk")
    # the scenarios
    scenario: Any = group("practice")
    # a policy of task=walk: its folder, or a shipped one's name (npmp skill list)
    policy: str
    # its skill module; null: found by its checksum
    module: str | None = None
    # a policy of task=recover for scenarios with fallen starts; null: without these scenarios
    recovery: str | None = None
    # names of scenarios, e.g. [flat_forward,slope_up]; null: all
    scenarios: str | list[str] | None = None
    # trials of each scenario [practice: 100]
    trials: int = 100
    # success: no fall, and a mean velocity near the command over the last seconds [D]
    success: suite.SuccessConfig = field(default_factory=suite.SuccessConfig)
    # limits of red flags [D]
    flags: suite.FlagConfig = field(default_factory=suite.FlagConfig)
    # hold of setpoints, first_order or zero_order; null: as in the module's training
    hold: str | None = None
    # the folder for suite.json and suite.html
    out: Path | None = Path(f"runs/suite/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "trials")


def run(config: Suite, run: Run) -> int:
    """Run all scenarios, write the files, print the result."""
    if run.chosen["task"] != Walk.name:
        raise InputError(f"npmp evaluate suite: expected task=walk, got {run.chosen['task']}")
    robot = robots.load(config.robot)
    success = config.success
    helper = config.recovery
    folder, policy, module, skill, like = policy_of(config, run, robot)
    policy.check_task(Walk)
    within = as_command_range(policy.contract.command_range)
    base = Walk.resolve(config.task, None, policy.contract.input_settings)
    report_other_drives(policy.contract.training, config.actuator)
    requested = [config.scenarios] if isinstance(config.scenarios, str) else config.scenarios
    scenarios = suite.select_scenarios(config.scenario, requested, has_recovery=helper is not None)
    recovery = None if helper is None else load_recovery(helper, robot, run.device)
    settings = {
        name: suite.setup_scenario(name, scenario, base, like, within)
        for name, scenario in scenarios.items()
    }
    run.begin()
    actor = over(policy, skill)
    outcomes = dict[str, suite.ScenarioResult]()
    with progress_bar() as bar:
        for name in bar.track(settings, description="scenarios"):
            outcomes[name] = suite.run_scenario(
                actor,
                robot,
                settings[name],
                success,
                trials=config.trials,
                seed=run.seed,
                recovery=recovery,
                **run.place,
            )
    still = replace(like, pushes=PushConfig())
    sides = dead_zones.find_dead_zones(
        actor, robot, base, still, within, seed=run.seed, **run.place
    )
    rows = [{"name": name, **outcome.row} for name, outcome in outcomes.items()]
    result: dict[str, Any] = {
        **evaluation_record(config, run, folder, module, robot),
        "trials": config.trials,
        "command_range": within,
        "recovery": None if helper is None else Path(helper).name,
        "success": asdict(success),
        "passed": all(row["passed"] for row in rows),
        "scenarios": rows,
        "red_flags": suite.red_flags(outcomes, scenarios, robot, config.flags),
        "joint_speeds": suite.joint_speeds([outcome.trial for outcome in outcomes.values()], robot),
        "dead_zones": [side._asdict() | {"in_words": str(side)} for side in sides],
        "teacher": teacher_of(policy.contract),
    }
    write_json(run.folder / "suite.json", result)
    suite_page.write(run.folder / "suite.html", robot, result, outcomes, provenance_of(run))
    show(result)
    passed = sum(row["passed"] for row in rows)
    say(f"{passed} of {len(rows)} scenarios passed: {run.folder / 'suite.html'}")
    return OK if result["passed"] else NOT_PASSED


def show(result: dict[str, Any]) -> None:
    """Print a line per scenario and per raised flag."""
    right = ("success", "95 %", "mark", "fell", "off command")
    rows = [
        (
            row["name"],
            f"{row['success']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['pass_mark']:.2f}",
            f"{row['fell']:.2f}",
            f"{row['off_command']:.2f}",
            "passed" if row["passed"] else "; ".join(("not passed", *row.get("skating", ()))),
        )
        for row in result["scenarios"]
    ]
    show_table(("scenario", *right, ""), rows, right=right, box=None)
    for flag in result["red_flags"]:
        if flag["raised"]:
            measured = f"{flag['name']} {flag['value']:.3g} (from {flag['from']:g})"
            say(f"red flag: {measured}: {flag['symptom']}; {flag['cure']}")
    for side in result["dead_zones"]:
        if side["up_to"]:
            say(f"dead zone: {side['in_words']}")


main = Verb("evaluate suite", Suite, run)
