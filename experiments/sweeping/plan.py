"""From a command line with -m to jobs: every combination of values, composed and checked."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from mocap_data.errors import InputError
from npmp.devices import cpus
from npmp.experiments.common import (
    PATH_KEYS,
    TEXT_KEYS,
    Job,
    Main,
    Run,
    check_values,
    load_config,
    plain,
    progress_bar,
)
from npmp.experiments.help import CONF, choices
from npmp.experiments.sweeping.sweep import refuse_shared_files
from npmp.settings import flat

MULTIRUN = ("-m", "--multirun")


def jobs_of(main: Main, given: Sequence[str]) -> list[Job] | None:
    """A job for every combination of a command line's values; None where Hydra cannot read it.

    Of a sweep=NAME the file conf/sweep/NAME.yaml adds values (`hydra.sweeper.params`), and
    `variants`: settings that are tried one by one.
    """
    fixed, swept = split(main, [argument for argument in given if argument not in MULTIRUN])
    variants, values = named_sweep(main, fixed)
    known = {entries[0].partition("=")[0] for entries in swept}
    known |= {argument.partition("=")[0] for argument in fixed}
    swept = [entries for entries in values if entries[0].partition("=")[0] not in known] + swept
    jobs: list[Job] = []
    composed: dict[tuple[str, ...], Job] = {}
    combinations = list(product(variants, product(*swept)))
    with progress_bar() as bar:
        for variant, own in bar.track(combinations, description="composing jobs"):
            job = _job(main, fixed, (*variant, *own), composed)
            if job is None:
                return None
            parts = [*variant, *([",".join(sorted(own))] if own else [])]
            name = ",".join(parts).replace("/", "_").replace("'", "") or str(len(jobs))
            jobs.append(replace(job, name=name, number=len(jobs), overrides=(*variant, *own)))
    return jobs


def split(main: Main, given: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The arguments that all jobs share, and for each other key its settings, KEY=VALUE each.

    Raises:
      InputError: for values that have no end, such as interval(a,b).
    """
    fixed, swept = [], []
    places = [main.positional] if isinstance(main.positional, str) else main.positional or ()
    for argument in given:
        key, equals, value = argument.partition("=")
        if not equals and places and "," in argument and not argument.startswith("-"):
            key, value = places[0], argument
        found = values_of(key, value)
        if found is None:
            fixed.append(argument)
        else:
            swept.append([f"{key}={each}" for each in found])
    return fixed, swept


def values_of(key: str, text: str) -> list[str] | None:
    """The values of a swept setting, None of one that has a single value."""
    if key in PATH_KEYS and not re.search(r"[\[('\"$]", text):  # not Hydra's grammar
        return text.split(",") if "," in text else None
    override = None if key in TEXT_KEYS else parsed(f"{key}={text}")
    if override is None or not override.is_sweep_override():
        return None
    if not override.is_discrete_sweep() or text.startswith("glob"):
        raise InputError(f"{key}={text}: a,b or range(a,b) is expected without a sweeper")
    return list(override.sweep_string_iterator())


def parsed(argument: str) -> Override | None:
    """An argument as Hydra reads it; None for one that it cannot read, of which composing says."""
    try:
        return OverridesParser.create().parse_override(argument)
    except OverrideParseException:
        return None


def named_sweep(main: Main, fixed: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The variants and the values of the sweep=NAME among arguments; [[]] and [] without one."""
    settings = {key: value.strip("'\"") for key, _, value in (a.partition("=") for a in fixed)}
    path = CONF / "sweep" / f"{settings.get('sweep', '')}.yaml"
    if not settings.get("sweep") or not path.is_file():
        return [[]], []
    content: dict[str, Any] = plain(load_config(path))
    params = content.get("hydra", {}).get("sweeper", {}).get("params", {})
    values = [
        [f"{key}={value}" for value in values_of(key, str(text)) or [text]]
        for key, text in params.items()
    ]
    # what the command line gives holds, debug=tiny and all that it sets, too
    small = CONF / "debug" / main.name / "tiny.yaml"
    tiny = settings.get("debug") == "tiny" and small.is_file()
    held = flat(plain(load_config(small))) if tiny else {}
    variants = [
        [entry for entry in str(variant).split() if entry.partition("=")[0] not in held]
        for variant in content.get("variants", [""])
    ]
    return variants, values


def _job(
    main: Main, fixed: Sequence[str], own: Sequence[str], composed: dict[tuple[str, ...], Job]
) -> Job | None:
    """One job. Composing takes most of the time: jobs that differ in numbers alone share it."""
    quick = [entry for entry in own if _is_number(entry)]
    key = (*(entry for entry in own if entry not in quick), *(q.partition("=")[0] for q in quick))
    like = composed.get(key)
    if like is None or any(argument.startswith("resume=") for argument in fixed):
        jobs = main.jobs([*own, *fixed])
        if jobs is None or not jobs:
            return None
        composed[key] = jobs[0]
        return jobs[0]
    if like.wrong is not None:
        return like
    config = copy.deepcopy(like.config)
    overrides = OverridesParser.create().parse_overrides(quick)
    for override in overrides:
        OmegaConf.update(config, override.key_or_group, override.value())
    try:
        check_values(main.name, config, overrides)
    except InputError as error:
        return replace(like, config=config, wrong=error)
    return replace(like, config=config)


def _is_number(entry: str) -> bool:
    """Whether a setting is a plain value, which chooses no file and from which none is inferred."""
    key, _, value = entry.partition("=")
    number = r"-?\d+(\.\d*)?(e-?\d+)?"
    return bool(
        re.fullmatch(r"[a-z]\w*(\.\w+)*", key)
        and re.fullmatch(rf"(?i:true|false)|{number}|\[({number},?)+\]", value)
        and not choices(key)
    )


def complete(main: Main, job: Job, cores: int) -> dict[str, Any]:
    """A job's settings, complete. Raises InputError for those that the verb refuses."""
    try:
        if job.wrong is not None:
            raise job.wrong
        for key in ("threads", "torch_threads"):
            if key in job.config and job.config[key] is None:
                job.config[key] = cores
        refuse_shared_files(job.config)
        if main.check is not None:
            place, device = Path(str(job.config.out)), str(job.config.device)
            seed = int(job.config.seed)
            main.check(job.config, Run(main.name, place, seed, device, cpus(), given=job.given))
    except InputError as error:
        at = f" (job {job.name}; none was started)" if job.name else ""
        raise InputError(f"{error}{at}") from error
    return plain(job.config)
