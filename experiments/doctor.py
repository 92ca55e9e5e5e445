"""`npmp doctor`: check the installation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape

from mocap_data.files import write_json
from npmp.core import ranges
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.terminal import INTERNAL_ERROR, OK, console, say, table
from npmp.view.installation import Finding, Verdict, check_installation

SIGNS: Mapping[Verdict, str] = {
    "ok": "[green]ok[/]",
    "absent": "[yellow]absent[/]",
    "broken": "[red]broken[/]",
}


@dataclass(frozen=True, kw_only=True)
class Doctor(Keys):
    """Check versions, devices, renderers and extras, and print how to fix problems."""

    # seconds to wait for each rendering backend
    timeout: float = 20.0
    # also write the findings to this JSON file
    out: Path | None = None

    def __post_init__(self) -> None:
        ranges.above_zero(self, "timeout")


def run(config: Doctor, run: Run) -> int:
    """Run all checks; print the table and a verdict."""
    findings = check_installation(config.timeout)
    show(findings)
    if run.out is not None:
        write_json(run.out, [asdict(finding) for finding in findings])
    broken = [finding for finding in findings if finding.verdict == "broken"]
    if broken:
        say(f"npmp does not work here: {', '.join(finding.name for finding in broken)}")
        return INTERNAL_ERROR
    absent = [finding.name for finding in findings if finding.verdict == "absent"]
    say("npmp works here." + (f" Optional and absent: {', '.join(absent)}." if absent else ""))
    return OK


def show(findings: Sequence[Finding]) -> None:
    """The findings as one table."""
    findings_table = table(("", "what", "state", "detail"), show_edge=False, pad_edge=False)
    section = ""
    for finding in findings:
        if section and finding.section != section:
            findings_table.add_section()
        advice = f"\n[dim]-> {escape(finding.advice)}[/]" if finding.advice else ""
        first = finding.section if finding.section != section else ""
        findings_table.add_row(
            first, finding.name, SIGNS[finding.verdict], escape(finding.detail) + advice
        )
        section = finding.section
    console().print(findings_table)


main = Verb("doctor", Doctor, run, out="optional_file", torch=False)
