"""`npmp evaluate suite`: evaluate a walking policy in the scenarios of sim-to-real practice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import robots
from npmp.core import artifact, ranges
from npmp.deploy.policy_description import is_external
from npmp.envs import RobotBatchConfig
from npmp.envs.policy import Policy
from npmp.evaluation import dead_zones, suite
from npmp.evaluation.handover import load_recovery
from npmp.evaluation.policy import teacher_of
from npmp.experiments.backend import (
    WithExternalPolicy,
    evaluation_record,
    external_policy_of,
    refuse_external_keys,
    report_other_drives,
    simulated_policy_of,
)
from npmp.experiments.command import NOW, Run, Verb, provenance_of
from npmp.experiments.store import group
from npmp.experiments.terminal import NOT_PASSED, OK, progress_bar, say, show_table
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import over
from npmp.tasks.commands import CommandRange, as_command_range
from npmp.tasks.walk import Walk, WalkConfig
from npmp.view.report import suite_page


@dataclass(frozen=True, kw_only=True)
class Suite(WithExternalPolicy):
    """Evaluate a walking policy in the scenarios of sim-to-real practice, with red flags and
    remedies; write suite.json and suite.html. Exit code: 0 if all pass, otherwise 3.

    npmp evaluate suite policy=anymal_b_walk out=runs/suite
    npmp evaluate suite policy=runs/reuse/policy scenarios=[flat_forward,slope_up]
    randomization=paper out=runs/suite
    npmp evaluate suite policy=anymal_b_walk recovery=anymal_b_recover scenarios=[fallen_start]
    out=runs/suite
    npmp evaluate suite policy=op3_walk scenario.strong_push.push.force_n=8 out=runs/suite
    npmp evaluate suite policy=policy.onnx robot=unitree_g1 out=runs/suite
    """

    # default settings of the task in all scenarios
    task: Any = group("walk")
    # scenarios to run
    scenario: Any = group("practice")
    # a policy of task=walk: its folder, or a shipped one's name (npmp skill list); footsteps: a
    # trot planned over the ground, which module= tracks; or another project's velocity policy:
    # FILE.onnx, or FILE.pt of TorchScript
    policy: str
    # folder of the policy's skill module; null: found by its checksum
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


class Subject(NamedTuple):
    """The policy of a suite, its robots and its task."""

    policy: Policy
    robot: Robot
    robots: RobotBatchConfig
    task: WalkConfig
    command_range: CommandRange
    # `evaluation_record`
    record: dict[str, Any]
    # its teacher; "": none
    teacher: str = ""


def own_subject(config: Suite, run: Run) -> Subject:
    """A policy of npmp. Raises InputError as `simulated_policy_of`, or for another task."""
    refuse_external_keys(run)
    robot = robots.load(config.robot)
    folder, policy, module, skill, like = simulated_policy_of(config, run, robot)
    policy.check_task(Walk)
    report_other_drives(policy.contract.training, config.actuator)
    return Subject(
        over(policy, skill),
        robot,
        like,
        Walk.resolve(config.task, None, policy.contract.input_settings),
        as_command_range(policy.contract.command_range),
        evaluation_record(config, run, folder, module, robot),
        teacher_of(policy.contract),
    )


def external_subject(config: Suite, run: Run) -> Subject:
    """Another project's policy, with its gains, default pose and control rate. Raises InputError as
    `external_policy_of`."""
    path = Path(config.policy)
    policy, robot, like = external_policy_of(config, run, robots.load(config.robot))
    within = as_command_range(policy.description.command_range.tolist())
    record = evaluation_record(config, run, path, None, robot)
    return Subject(
        policy,
        robot,
        like,
        Walk.resolve(config.task, None, {"command_range": within}),
        within,
        record | {"policy_sha256": artifact.sha256(path)},
    )


def run(config: Suite, run: Run) -> int:
    """Run all scenarios, write the files, print the result."""
    if run.chosen["task"] != Walk.name:
        raise InputError(f"npmp evaluate suite: expected task=walk, got {run.chosen['task']}")
    success = config.success
    helper = config.recovery
    subject = (external_subject if is_external(config.policy) else own_subject)(config, run)
    robot = subject.robot
    within = subject.command_range
    requested = [config.scenarios] if isinstance(config.scenarios, str) else config.scenarios
    scenarios = suite.select_scenarios(config.scenario, requested, has_recovery=helper is not None)
    recovery = None if helper is None else load_recovery(helper, robot, run.device)
    settings = {
        name: suite.setup_scenario(name, scenario, subject.task, subject.robots, within)
        for name, scenario in scenarios.items()
    }
    run.begin()
    outcomes = dict[str, suite.ScenarioResult]()
    with progress_bar() as bar:
        for name in bar.track(settings, description="scenarios"):
            outcomes[name] = suite.run_scenario(
                subject.policy,
                robot,
                settings[name],
                success,
                trials=config.trials,
                seed=run.seed,
                recovery=recovery,
                **run.place,
            )
    still = replace(subject.robots, pushes=PushConfig())
    sides = dead_zones.find_dead_zones(
        subject.policy, robot, subject.task, still, within, seed=run.seed, **run.place
    )
    rows = [{"name": name, **outcome.row} for name, outcome in outcomes.items()]
    result: dict[str, Any] = {
        **subject.record,
        "trials": config.trials,
        "command_range": within,
        "recovery": None if helper is None else Path(helper).name,
        "success": asdict(success),
        "passed": all(row["passed"] for row in rows),
        "scenarios": rows,
        "red_flags": suite.red_flags(outcomes, scenarios, robot, config.flags),
        "joint_speeds": suite.joint_speeds([outcome.trial for outcome in outcomes.values()], robot),
        "dead_zones": [side._asdict() | {"in_words": str(side)} for side in sides],
        "teacher": subject.teacher,
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
