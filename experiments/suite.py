"""`npmp suite`: a walking policy in the scenarios of sim-to-real practice; suite.json, suite.html;
exits 3 unless all pass."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mocap_data.errors import InputError, unknown
from mocap_data.files import write_json
from npmp import report, robots
from npmp.evaluation.policy import teacher_of
from npmp.evaluation.suite import (
    FlagConfig,
    Scenario,
    ScenarioResult,
    SuccessConfig,
    joint_speeds,
    red_flags,
    run_scenario,
    setting_of,
)
from npmp.experiments.backend import backend_of, note_other_drives, policy_of, robots_config_of
from npmp.experiments.common import (
    Run,
    at_least,
    console,
    made_by,
    names_of,
    progress_bar,
    say,
    table,
    verb,
)
from npmp.experiments.failures import NOT_PASSED, OK
from npmp.experiments.typed import build
from npmp.report import suite_page
from npmp.reuse import PolicyActor
from npmp.reuse.handover import load_recovery
from npmp.tasks.commands import as_command_range
from npmp.tasks.walk import Walk, WalkConfig


def scenarios_of(config: DictConfig) -> dict[str, Scenario]:
    """The scenarios that are asked for, by name. Raises InputError for one that there is not."""
    known: Any = OmegaConf.to_container(config.scenario, resolve=True)
    known.pop("name", None)
    asked = names_of(config, "scenarios")
    names = list(known) if asked is None else asked
    if not names:
        raise InputError(f"scenarios=[] names none; there are: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise unknown("scenario", name, known)
    found = {name: build(Scenario, known[name], at=f"scenario.{name}") for name in names}
    if config.recovery is None and asked is None:  # nobody gets up
        return {name: scenario for name, scenario in found.items() if not scenario.fallen}
    if config.recovery is None and (fallen := [name for name in names if found[name].fallen]):
        raise InputError(f"scenario {fallen[0]} takes a policy that gets up: recovery=NAME")
    if config.recovery is not None and not any(scenario.fallen for scenario in found.values()):
        raise InputError("recovery= is for scenario fallen_start, which scenarios= does not name")
    return found


def run(config: DictConfig, run: Run) -> int:
    """Try all scenarios, write the files, say who passed."""
    at_least(config, trials=1)
    if config.task.name != Walk.name:
        raise InputError(f"npmp suite is for task=walk, not for {config.task.name}")
    robot = robots.load(config.robot.name)
    folder, policy, module, skill = policy_of(config, run.device)
    policy.check_task(Walk)
    skill.check_robot(robot)
    success, flags = (
        build(SuccessConfig, config.success, at="success"),
        build(FlagConfig, config.flags, at="flags"),
    )
    within = as_command_range(policy.contract.command_range)
    base = Walk.resolve(build(WalkConfig, config.task, at="task"), None, policy.contract.told)
    like = robots_config_of(config, skill)
    note_other_drives(policy.contract.training, config)
    scenarios = scenarios_of(config)
    recovery = (
        None if config.recovery is None else load_recovery(str(config.recovery), robot, run.device)
    )
    settings = {
        name: setting_of(name, scenario, base, like, within) for name, scenario in scenarios.items()
    }
    place: dict[str, Any] = {**backend_of(config, run), "num_threads": run.threads}
    run.begin()
    actor, outcomes = PolicyActor(policy, skill), dict[str, ScenarioResult]()
    with progress_bar() as bar:
        for name in bar.track(settings, description="scenarios"):
            outcomes[name] = run_scenario(
                actor,
                robot,
                settings[name],
                success,
                trials=config.trials,
                seed=run.seed,
                recovery=recovery,
                **place,
            )
    rows = [{"name": name, **outcome.row} for name, outcome in outcomes.items()]
    result: dict[str, Any] = {
        "policy": folder.name, "module": module.name, "robot": robot.name, "seed": run.seed, "trials": config.trials,
        "sim": config.sim, "actuator": config.actuator, "randomization": config.randomization.name,
        "command_range": within,
        "recovery": None if config.recovery is None else Path(str(config.recovery)).name,
        "success": asdict(success),
        "passed": all(row["passed"] for row in rows), "scenarios": rows,
        "red_flags": red_flags(outcomes, scenarios, robot, flags),
        "joint_speeds": joint_speeds([outcome.trial for outcome in outcomes.values()], robot),
        "teacher": teacher_of(policy.contract), "versions": report.versions(),
    }  # fmt: skip
    write_json(run.folder / "suite.json", result)
    suite_page.write(run.folder / "suite.html", robot, result, outcomes, made_by(config, run.seed))
    show(result)
    passed = sum(row["passed"] for row in rows)
    say(f"{passed} of {len(rows)} scenarios passed: {run.folder / 'suite.html'}")
    return OK if result["passed"] else NOT_PASSED


def show(result: dict[str, Any]) -> None:
    """A line per scenario and per raised flag."""
    right = ("success", "95 %", "mark", "fell", "off command")
    rows = [
        (row["name"], f"{row['success']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", f"{row['pass_mark']:.2f}",
         f"{row['fell']:.2f}", f"{row['off_command']:.2f}", "passed" if row["passed"] else "not passed")
        for row in result["scenarios"]
    ]  # fmt: skip
    console().print(table(("scenario", *right, ""), rows, right=right, box=None))
    for flag in result["red_flags"]:
        if flag["raised"]:
            measured = f"{flag['name']} {flag['value']:.3g} (from {flag['from']:g})"
            say(f"red flag: {measured}: {flag['symptom']}; {flag['cure']}")


main = verb("suite", run)
