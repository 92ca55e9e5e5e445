"""One self-contained HTML page for a run: figures, tables, charts, an interactive 3-D replay,
provenance.

from npmp.experiments import report
report.build(Path("runs/demo/report.html"), report.ReportData(title="Demo",
rollouts=Path("runs/demo/rollouts.h5")))
"""

from npmp.experiments.report.data import (
    ReportData,
    Walking,
    command_line,
    machine_summary,
    made_by,
    scrub,
    versions,
)
from npmp.experiments.report.page import build
from npmp.experiments.report.parts import is_report

__all__ = [
    "ReportData",
    "Walking",
    "build",
    "command_line",
    "is_report",
    "machine_summary",
    "made_by",
    "scrub",
    "versions",
]
