"""`npmp modules list | show NAME | info MODULE`: shipped skill modules, their cards, and what any module's latents do."""

from __future__ import annotations

import json
from typing import Any

import torch
from omegaconf import DictConfig
from rich.table import Table

from experiments.common import Run, above_zero, at_least, console, one_of, verb
from experiments.plant import hold_of
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import modules, robots
from npmp.envs import ImitationConfig, ImitationEnv, load_motions
from npmp.envs.plant import PlantConfig
from npmp.skill import SkillModule
from npmp.wander import LATENTS, latent_use, wander

ACTIONS = ("list", "show", "info")


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", *ACTIONS)
    if config.action == "list":
        show_modules()
        return 0
    if config.target is None:
        raise InputError(f"npmp modules {config.action} needs a module: {', '.join(modules.names()) or 'its folder'}")
    if config.action == "show":
        print(modules.card(str(config.target)))
        return 0
    at_least(config, envs=1)
    above_zero(config, "seconds")
    figures = info(config, run)
    if run.out is not None:
        with atomic_path(run.out) as path:
            path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    show_info(figures)
    return 0


def show_modules() -> None:
    """A line per shipped module."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("module", "robot", "latent", "trained on", "licences of the data"):
        table.add_column(column, overflow="fold")
    for name in modules.names():
        skill = SkillModule.load(modules.find(name))
        training = skill.contract.training
        clips = f"{len(training.get('clips', []))} clips, {training.get('env_steps', 0):,} steps"
        table.add_row(name, skill.robot, str(skill.latent_dim), clips, ", ".join(training.get("licences", [])))
    console().print(table)
    print("module=NAME takes one; npmp modules show NAME prints its card.")


def info(config: DictConfig, run: Run) -> dict[str, Any]:
    """What the module says of itself and, where data= is given, what its latents carry and how long they keep robots up."""
    folder = modules.find(str(config.target))
    skill = SkillModule.load(folder)
    contract, training = skill.contract, skill.contract.training
    figures: dict[str, Any] = {
        "module": folder.name,
        "robot": skill.robot,
        "latent_dim": skill.latent_dim,
        "alpha": skill.alpha,
        "weights": sum(p.numel() for p in skill.parameters()),
        "net": contract.net,
        "control_rate_hz": contract.control_rate_hz,
        "hold": hold_of(skill),
        **{key: training[key] for key in ("data", "algorithm", "randomization", "env_steps", "licences") if key in training},
    }
    if config.data is None:
        return figures
    robot = robots.load(skill.robot)
    skill.check_robot(robot)
    motions = load_motions(config.data, robot, config.split)
    env = ImitationEnv(
        robot, motions, config.envs, seed=run.seed,
        config=ImitationConfig(plant=PlantConfig(hold=hold_of(skill)), num_threads=run.threads),
    )  # fmt: skip
    use = latent_use(skill, env, steps=200, seed=run.seed)
    order = torch.argsort(use.kl, descending=True)
    figures["kl_nats_per_step"] = round(use.kl.sum().item(), 3)
    figures["active_dimensions"] = use.active()
    figures["kl_by_dimension"] = {int(i): round(use.kl[i].item(), 3) for i in order}
    for latents in LATENTS:
        trial = wander(skill, env, latents, seconds=config.seconds, seed=run.seed)
        figures[f"{latents}_latents"] = {
            "up_s_mean": round(trial.up_s.mean().item(), 2),
            "up_s_median": round(trial.up_s.median().item(), 2),
            "up_to_the_end": round((trial.up_s >= config.seconds - env.dt).float().mean().item(), 3),
            "speed_mps": round((trial.travelled_m.sum() / trial.up_s.sum().clamp(min=env.dt)).item(), 3),
        }
    return figures


def show_info(figures: dict[str, Any]) -> None:
    """Figures as lines."""
    for key, value in figures.items():
        shown = value
        if key == "kl_by_dimension":
            shown = ", ".join(f"z{i} {kl}" for i, kl in list(value.items())[:12])
        elif isinstance(value, dict):
            shown = ", ".join(f"{name} {entry}" for name, entry in value.items())
        elif isinstance(value, list):
            shown = ", ".join(str(entry) for entry in value)
        print(f"{key.replace('_', ' ')}: {shown}")


main = verb("modules", run, out="optional_file", positional=("action", "target"), devices=("cpu",))
