"""`npmp export`: a policy as a bundle for robots or as a page, or reference motions as mjlab's npz
or Unitree's CSV."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, ListConfig

from mocap_data.errors import InputError, unknown
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.files import write_json
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in
from npmp import robots
from npmp.experiments.common import (
    Run,
    above_zero,
    at_least,
    console,
    names_of,
    refuse_idle,
    say,
    table,
    verb,
)
from npmp.robots import Robot

if TYPE_CHECKING:
    from npmp.deploy.bundle import Bundle
    from npmp.envs import TaskEnv
    from npmp.envs.robot_batch import RobotBatchConfig
    from npmp.reuse import HighLevelPolicy
    from npmp.skill import SkillModule

CONFIG = "config.yaml"
BUNDLE, WEB, MJLAB, UNITREE = "bundle", "web", "mjlab", "unitree_csv"
MANIFEST = "export.json"
NO_POLICY = "npmp export format=web needs policy=... : one, several as [a,b], or all that walk"
RECORDED = 4  # robots of a golden recording, one after another: as many resets at the least
Writer = Callable[[Path, ReferenceMotion, MotionSet, "Robot | None"], None]


def run(config: DictConfig, run: Run) -> int:
    """A bundle or a page where a policy is named, else motions."""
    if config.policy is not None:
        if config.data is not None:
            raise InputError(
                "npmp export writes motions (data=) or a policy (policy=), not both at once"
            )
        kind = BUNDLE if config.format is None else str(config.format)
        if kind not in OF_POLICIES:
            raise unknown("format of policies", kind, OF_POLICIES)
        refuse_idle(
            config,
            run.given,
            "is of motions, data=..., not of a policy",
            "clips",
            "split",
            "rate_hz",
        )
        if kind == WEB:
            refuse_idle(
                config,
                run.given,
                "is of a bundle's golden recording, not of a page",
                "steps",
                "randomization",
            )
        return OF_POLICIES[kind](config, run)
    if config.format == WEB:
        raise InputError(NO_POLICY)
    if config.data is None:
        raise InputError(
            "npmp export needs data=... (a dataset of motions) or policy=... (a bundle is written)"
        )
    refuse_idle(
        config,
        run.given,
        "is of a policy, not of motions",
        "module",
        "steps",
        "randomization",
        "actuator",
    )
    return export_motions(config, run)


def export_policy(config: DictConfig, run: Run) -> int:
    """A policy and its module as a bundle, with a recording of the two at the policy's own task."""
    # torch takes seconds to import, and motions need none
    from npmp.deploy.bundle import FEWEST_STEPS, replay
    from npmp.devices import seed_everything
    from npmp.experiments.backend import robots_config_of

    at_least(config, steps=FEWEST_STEPS)
    if isinstance(config.policy, ListConfig):
        raise InputError("a bundle is of one policy; format=web puts several on one page")
    seed_everything(run.seed, device="cpu", threads=int(config.torch_threads or 1), use_torch=True)
    trained = Trained.load(str(config.policy), config.module, robots.load(config.robot.name))
    env = trained.env(robots_config_of(config, trained.skill), run)
    run.begin()
    about = {"randomization": str(config.randomization.name), "seed": run.seed}
    bundle = trained.export(run.folder, env, config.steps, about)
    off = replay(bundle.policy(), bundle.golden()).difference
    what = f"{trained.folder.name} through {trained.module.name}"
    say(f"{what}: {run.folder}, {off:.1e} rad from torch over {config.steps:,} steps")
    return 0


def export_page(config: DictConfig, run: Run) -> int:
    """Walking policies as a folder for a web server, each robot its own."""
    from npmp import policies
    from npmp.deploy.bundle import FEWEST_STEPS, TOLERANCE, replay
    from npmp.deploy.trial import COMMAND
    from npmp.deploy.web import Walker, refuse_other_commands, write
    from npmp.devices import seed_everything
    from npmp.envs.robot_batch import RobotBatchConfig
    from npmp.sim.action_space import PD

    seed_everything(run.seed, device="cpu", threads=int(config.torch_threads or 1), use_torch=True)
    asked = names_of(config, "policy")
    if not asked:
        raise InputError(NO_POLICY)
    found = [
        Trained.load(name, config.module)
        for name in (policies.names() if asked == ["all"] else asked)
    ]
    if asked == ["all"]:
        found = [
            one
            for one in found
            if one.policy.contract.command == COMMAND and not one.policy.contract.besides
        ]
    names = [one.folder.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"two policies are called {', '.join(twice)}: the page calls them by their folders; rename one"
        )
    if odd := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise InputError(
            f"the page calls policies by their folders: letters, digits, '.', '_' and '-' are expected, not {odd[0]!r}"
        )
    for one in found:
        refuse_other_commands(one.folder.name, one.policy.contract)
    with tempfile.TemporaryDirectory() as scratch:
        walkers = []
        for one in found:
            drives = (
                str(config.actuator)
                if "sha256" in one.policy.contract.training.get("actuator", {})
                else PD
            )
            env = one.env(RobotBatchConfig(actuator=drives).like(one.skill), run)
            place = Path(scratch) / one.folder.name
            bundle = one.export(
                place, env, FEWEST_STEPS, {"randomization": "none", "seed": run.seed}
            )
            if not (off := replay(bundle.policy(), bundle.golden()).difference) <= TOLERANCE:
                raise InputError(
                    f"{one.folder.name} as a graph answers otherwise than torch: by {off:.1e} rad"
                )
            walkers.append(Walker(one.folder.name, bundle, env.task.config.rough()))
        # it opens with one on flat ground
        walkers.sort(key=lambda walker: walker.terrain is not None)
        size = write(run.folder, walkers)
    run.begin()
    (run.folder / CONFIG).unlink()  # the folder goes onto the web as it is
    say(f"{', '.join(one.name for one in walkers)}: {run.folder}, {size / 1e6:.1f} MB")
    say(
        f"to look at it: python -m http.server -d {shlex.quote(str(run.folder))}, then http://localhost:8000"
    )
    return 0


@dataclass(frozen=True)
class Trained:
    """A policy with the skill module and the robot that it moves."""

    folder: Path
    policy: HighLevelPolicy
    module: Path
    skill: SkillModule
    robot: Robot

    @staticmethod
    def load(name: str, module: str | None, robot: Robot | None = None) -> Trained:
        """module: None where it is found by its checksum. robot: None for the one that the policy
        says.

        Raises: InputError for what does not exist or does not belong together.
        """
        from npmp import modules, policies
        from npmp.reuse import HighLevelPolicy, find_module
        from npmp.skill import SkillModule

        folder = policies.find(name)
        policy = HighLevelPolicy.load(folder)
        found = (
            find_module(folder, policy.contract.module_sha256)
            if module is None
            else modules.find(str(module))
        )
        policy.check_module(found)
        robot = robots.load(policy.contract.robot) if robot is None else robot
        return Trained(folder, policy, found, SkillModule.load(found), robot)

    def env(self, like: RobotBatchConfig, run: Run) -> TaskEnv[Any]:
        """The policy's own task, for a golden recording."""
        from npmp import tasks
        from npmp.envs import TaskEnv
        from npmp.settings import from_mapping

        own, kind = self.policy.contract, cast(Any, tasks.find(self.policy.contract.task))
        settings = from_mapping(
            kind.config_type, own.training.get("settings", {}), at="the policy's settings"
        )
        task = kind(self.robot, kind.settle(settings, None, own.told))
        return TaskEnv(task, RECORDED, robots=like, seed=run.seed, num_threads=run.threads)

    def export(self, out: Path, env: TaskEnv[Any], steps: int, about: dict[str, Any]) -> Bundle:
        """Write the bundle and read it back."""
        from npmp.artifact import sha256
        from npmp.deploy.export import export

        weights = sha256(self.folder / "policy.safetensors")
        return export(out, self.policy, self.skill, env, sha256=weights, steps=steps, about=about)


def export_motions(config: DictConfig, run: Run) -> int:
    """Write a file per clip and export.json. Nothing is written unless the dataset and the names
    are sound."""
    data, kind = Path(str(config.data)), MJLAB if config.format is None else str(config.format)
    if kind not in FORMATS:
        raise unknown("format to export", kind, FORMATS)
    if config.rate_hz is not None:
        above_zero(config, "rate_hz")
    names = chosen(data, names_of(config, "clips"), config.split)
    first = read_motions(data, clips=names[:1])
    robot = robot_of(first)
    if robot is None and kind == MJLAB:
        raise InputError(
            f"{data}: format=mjlab holds the bodies' poses; these need the model of robot {first.robot!r} that the "
            "motions were made with, which is not here (format=unitree_csv needs none)"
        )
    run.begin()
    suffix, write = FORMATS[kind]
    columns, title = (
        ("clip", "frames", "rate hz", "licence", "file"),
        f"{kind} of robot {first.robot}",
    )
    shown = table(columns, title=title, title_justify="left")
    clips: list[dict[str, Any]] = []
    for name in names:  # one clip at a time: a dataset may be larger than memory
        motion = at_rate(read_motions(data, clips=[name]).motions[0], config.rate_hz, robot)
        path = run.folder / f"{name}{suffix}"
        write(path, motion, first, robot)
        clips.append(about(motion, path))
        shown.add_row(
            name, str(motion.num_frames), f"{motion.rate_hz:g}", motion.licence, path.name
        )
    write_json(run.folder / MANIFEST, manifest(kind, data, first, clips))
    console().print(shown)
    say(f"{len(names)} clips and {MANIFEST} in {run.folder}")
    return 0


def chosen(data: Path, asked: Sequence[str] | None, split: Any) -> list[str]:
    """The names of the clips to write.

    Raises:
      InputError: for one that there is not, or none.
    """
    of = splits_in(data)
    known = list(of)
    for name in asked or []:
        if name not in known:
            raise unknown(f"clip in {data}", name, known)
    names = known if asked is None else list(dict.fromkeys(asked))
    if split is not None:
        if str(split) not in of.values():
            raise unknown(f"split in {data}", split, sorted({*of.values()} - {""}))
        names = [name for name in names if of[name] == str(split)]
    if not names:
        raise InputError(
            f"{data} holds no clips"
            if split is None
            else f"{data}: no clip of clips= is of {split=!s}"
        )
    return names


def robot_of(motions: MotionSet) -> Robot | None:
    """The robot that a dataset is of, None where it is none of those here, or has another model by
    now."""
    try:
        robot = robots.load(motions.robot)
    except InputError:
        return None
    return robot if robot.model_sha256 == motions.model_sha256 else None


def at_rate(motion: ReferenceMotion, rate_hz: Any, robot: Robot | None) -> ReferenceMotion:
    """The motion at another rate (None: its own).

    Raises:
      InputError: where the robot that this needs is not here.
    """
    if rate_hz is None or float(rate_hz) == motion.rate_hz:
        return motion
    if robot is None:
        raise InputError(
            f"rate_hz={rate_hz}: resampling needs the robot's model, which is not here; leave rate_hz out"
        )
    from retarget.resampling import resample

    return resample(motion, robot, float(rate_hz))


def write_mjlab(
    path: Path, motion: ReferenceMotion, motions: MotionSet, robot: Robot | None
) -> None:
    assert robot is not None  # see `run`
    from retarget.kinematics import body_states, tree_of

    bodies = body_states(tree_of(robot.model(visuals=False)), motion)
    write_mjlab_npz(path, motion, motions.joint_names, motions.body_names, bodies)


def write_csv(path: Path, motion: ReferenceMotion, motions: MotionSet, robot: Robot | None) -> None:
    write_unitree_csv(path, motion, motions.joint_names, robot=motions.robot)


FORMATS: Mapping[str, tuple[str, Writer]] = {
    MJLAB: (".npz", write_mjlab),
    UNITREE: (".csv", write_csv),
}
OF_POLICIES: Mapping[str, Callable[[DictConfig, Run], int]] = {
    BUNDLE: export_policy,
    WEB: export_page,
}
CONVENTIONS = {
    MJLAB: "metres, radians, seconds; world Z up; quaternions w, x, y, z, body to world; velocities of body origins "
    "in world axes; bodies without the world, joints and bodies in MuJoCo's order",
    UNITREE: "metres, radians; world Z up; root x, y, z, quaternion x, y, z, w (root to world), joints; no header",
}


def about(motion: ReferenceMotion, path: Path) -> dict[str, Any]:
    """What the formats cannot say of a clip."""
    said = ("source", "licence", "recording", "mirror", "split")
    told = {
        "name": motion.name,
        "file": path.name,
        "frames": motion.num_frames,
        "rate_hz": motion.rate_hz,
    }
    return told | {key: getattr(motion, key) for key in said}


def manifest(
    kind: str, data: Path, motions: MotionSet, clips: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The contents of export.json."""
    return {
        "format": kind,
        "conventions": CONVENTIONS[kind],
        "data": str(data),
        "robot": motions.robot,
        "model_sha256": motions.model_sha256,
        "joint_names": list(motions.joint_names),
        "body_names": list(motions.body_names),
        "clips": list(clips),
    }


main = verb("export", run, torch=False, positional="data", devices=("cpu",))


if __name__ == "__main__":
    sys.exit(main(None))
