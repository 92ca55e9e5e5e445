"""`npmp policies list | show NAME`: shipped high-level policies and their cards."""

from __future__ import annotations

from omegaconf import DictConfig

from npmp import policies
from npmp.experiments.common import Run, one_of, verb
from npmp.experiments.modules import show_card, show_table
from npmp.reuse import HighLevelPolicy


def row(name: str) -> tuple[str, ...]:
    """A policy's line of the table."""
    contract = HighLevelPolicy.load(policies.find(name)).contract
    ranges = ", ".join(
        f"{a:g} to {b:g} {unit}" for unit, (a, b) in zip(contract.command, contract.command_range)
    )
    told = ["clock"] * (contract.clock_s is not None) + ["ground"] * contract.sees_ground
    return (
        name,
        contract.robot,
        contract.task,
        str(contract.training.get("module", "")),
        ranges,
        ", ".join(told),
    )


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", "list", "show")
    if config.action == "list":
        show_table(
            ("policy", "robot", "task", "module", "commands", "told besides"),
            [row(name) for name in policies.names()],
        )
        print(
            "npmp evaluate policy=NAME task=TASK judges one; npmp policies show NAME prints its card."
        )
        return 0
    return show_card(config, run, policies.REGISTRY)


main = verb(
    "policies", run, out="optional_folder", positional=("action", "target"), devices=("cpu",)
)
