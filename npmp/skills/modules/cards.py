"""The model card of a skill module, CARD.md, from its contract, its run and its evaluations."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mocap_data.errors import InputError
from mocap_data.motion import speeds
from mocap_data.store import MotionSet
from npmp.core import artifact

# clips up to this top speed are also scored separately [m/s]
FAST_MPS = 2.0
# clips tracked for a smaller share are listed among the limits
LOST = 0.5
COLUMNS = (
    "| clips | share of time tracked | clips tracked whole | base deviation, mean over time"
    " | at the last tracked frame | joint error |\n|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class CardContent:
    """The content of a card; all but name and contract are optional."""

    # name of the module
    name: str
    # the content of module.json
    contract: Mapping[str, Any]
    # commands that reproduce it
    commands: Sequence[str] = ()
    # a sentence on the data
    about: str = ""
    # size of the dataset, training and held-out motions; 0: unknown
    recordings: int = 0
    clips: int = 0
    seconds: float = 0.0
    # duration of training
    hours: float | None = None
    machine: str = ""
    # contents of evaluation.json, nominal or randomized
    evaluations: Sequence[Mapping[str, Any]] = ()
    # top speed of each clip by name [m/s], for the rows up to `FAST_MPS`
    speeds: Mapping[str, float] = field(default_factory=dict)
    # the content of wander.json
    wander: Mapping[str, Any] | None = None
    # the author's sentences on limits
    limits: str = ""


def size_of(motions: MotionSet) -> dict[str, Any]:
    """The fields of `CardContent` on a dataset."""
    every = motions.motions
    return {
        "recordings": len({m.recording or m.name for m in every}),
        "clips": len(every),
        "seconds": float(sum(len(m.qpos) / m.rate_hz for m in every)),
        "speeds": {m.name: float(speeds(m).max()) for m in every},
    }


def write_card(content: CardContent) -> str:
    """The card as Markdown in lines of 100 columns. Raises InputError for an invalid
    evaluation."""
    commands = "**Command.**\n\n```\n" + "\n".join(content.commands) + "\n```"
    parts = [
        f"# {content.name}",
        _networks(content.contract),
        _data(content),
        commands if content.commands else "",
        _training(content),
        _scores(content) if content.evaluations else "",
        _limits(content),
    ]
    fill = textwrap.TextWrapper(100, break_long_words=False, break_on_hyphens=False).fill
    split = "\n\n".join(part for part in parts if part).split("\n\n")
    return "\n\n".join(p if "\n" in p or p.startswith("#") else fill(p) for p in split) + "\n"


def _networks(contract: Mapping[str, Any]) -> str:
    net = contract["net"]
    # modules from before other priors do not name theirs
    prior = net.get("prior", "ar1")
    named = f"AR(1) prior (alpha {net['alpha']:g})" if prior == "ar1" else f"prior {prior}"
    hold = contract["training"].get("hold", "zero_order").replace("_", "-")
    return (
        f"Encoder, {named} and LSTM decoder for {contract['robot']},"
        f" {net['latent_dim']} latent dimensions, {contract['control_rate_hz']:g} Hz joint targets,"
        f" {hold} hold. Weights stored as {contract.get('weights_dtype', 'float32')}."
    )


def _data(content: CardContent) -> str:
    training = content.contract["training"]
    licences = training.get("licences", [])
    clips = training.get("clips", [])
    words = [
        f"**Licence and data.** Trained on recordings under: {', '.join(licences) or 'unknown'}."
    ]
    if any("NC" in licence for licence in licences):
        words.append("For non-commercial use only, also for policies trained through it.")
    words += [content.about] if content.about else []
    words.append(f"{len(clips)} motions of {training.get('data', 'an unnamed dataset')}.")
    if content.clips:
        held_out = "; whole recordings are held out" if len(clips) < content.clips else ""
        words.append(
            f"The dataset: {content.recordings} recordings, {content.clips} motions with their"
            f" mirrors, {content.seconds:.0f} s{held_out}."
        )
    return " ".join(words)


def _training(content: CardContent) -> str:
    training = content.contract["training"]
    words = [
        f"Seed {training['seed']}" if training.get("seed") is not None else "",
        f"{training['env_steps']:,} environment steps" if training.get("env_steps") else "",
        f"{training['iterations']:,} iterations" if "iterations" in training else "",
        f"{content.hours:.1f} hours" if content.hours is not None else "",
        content.machine,
    ]
    versions = content.contract.get("versions", {})
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"**Training.** {', '.join(word for word in words if word)}. Made with {packages}."


def _scores(content: CardContent) -> str:
    rows = ""
    starts = []
    for evaluation in content.evaluations:
        clips = evaluation.get("clips")
        if not isinstance(clips, list) or not clips:
            raise InputError(
                "an evaluation for the card has no clips; expected evaluation.json of npmp evaluate"
            )
        physics = evaluation.get("randomization", "none")
        name = "nominal" if physics == "none" else f"`randomization={physics}`"
        if (drives := artifact.short(evaluation.get("actuator", "pd"))) != "pd":
            name += f", `actuator={drives}`"
        splits = {"train": "trained on", "validation": "held-out"}
        split = splits.get(str(evaluation.get("split")), "all")
        if split == "held-out" and (trained_on := evaluation.get("seen_in_training")):
            split = f"validation ({trained_on} of recordings trained on)"
        slow = [c for c in clips if content.speeds.get(c["name"], FAST_MPS + 1.0) <= FAST_MPS]
        if slow and len(slow) < len(clips):
            limit = f"nowhere faster than {FAST_MPS:g} m/s ({len(slow)})"
            rows += _row(f"{split}, {limit}, {name}", slow)
        rows += _row(f"{split}, all ({len(clips)}), {name}", clips)
        if "random_starts" in evaluation:
            random = evaluation["random_starts"]
            starts.append(f"{random['tracked_fraction']:.3f} {name} ({random['starts']} starts)")
    text = (
        "**Scores.** `npmp evaluate`, each clip once from its first frame, termination by eq. 2,"
        " mean latents and actions. Deviations are over the tracked steps: of the base the median"
        f" over clips, of the joints the mean.\n\n{COLUMNS}{rows}"
    )
    if starts:
        text += f"\nFrom random starts, share of the remaining clip: {', '.join(starts)}."
    return text.rstrip("\n") + _wandering(content.wander)


def _row(name: str, clips: Sequence[Mapping[str, Any]]) -> str:
    share = sum(c["tracked_s"] for c in clips) / max(sum(c["duration_s"] for c in clips), 1e-9)
    whole = sum(c["tracked_fraction"] >= 1.0 for c in clips)
    mean, last = ([c["base_deviation_m"].get(key) for c in clips] for key in ("mean", "last"))
    bases = " | ".join(
        "not recorded" if None in each else f"{100 * statistics.median(each):.1f} cm"
        for each in (mean, last)
    )
    joints = statistics.fmean(c["joint_error_rad"] for c in clips)
    return f"| {name} | {share:.3f} | {whole} | {bases} | {joints:.3f} rad |\n"


def _wandering(wander: Mapping[str, Any] | None) -> str:
    if wander is None:
        return ""
    row = wander["latents"]
    if "up_s_mean" not in row:
        raise InputError("wander=: from an older npmp skill wander; run it again")
    splits = {"validation": ", held out", "train": ", trained on"}
    starts = f"{wander['starts']}{splits.get(str(wander.get('split')), '')}"
    return (
        f"\n\n**Wandering.** {wander['robots']} robots from the {starts}, no task,"
        f" {wander['seconds']:g} s at most: up for {row['up_s_mean']:.1f} s in the mean,"
        f" {100 * row['up_to_the_end']:.0f} % to the end, at {row['speed_mps']:.2f} m/s."
    )


def _limits(content: CardContent) -> str:
    lost = []
    for evaluation in content.evaluations:
        if evaluation.get("randomization", "none") == "none":
            clips = evaluation["clips"]
            lost += [clip["name"] for clip in clips if clip["tracked_fraction"] < LOST]
    tops = {name: f" (up to {speed:.1f} m/s)" for name, speed in content.speeds.items()}
    words = [content.limits] if content.limits else []
    if lost:
        listed = ", ".join(name + tops.get(name, "") for name in dict.fromkeys(lost))
        words.append(f"Less than half is tracked of {listed}.")
    drives = content.contract.get("training", {}).get("actuator", {"name": "pd"})["name"]
    words.append(f"Simulation only, flat ground, actuator={drives}.")
    return "**Limits.** " + " ".join(words)
