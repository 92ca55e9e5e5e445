"""One self-contained HTML page for a run: figures, tables, charts, an interactive 3-D replay,
provenance.

from npmp import report
report.build(Path("runs/demo/report.html"), report.ReportData(title="Demo",
rollouts=Path("runs/demo/rollouts.h5")))
"""

from npmp.report.data import ReportData, Walking, command_line, machine_summary, scrub, versions
from npmp.report.page import build
from npmp.report.parts import is_report

__all__ = [
    "ReportData",
    "Walking",
    "build",
    "command_line",
    "is_report",
    "machine_summary",
    "scrub",
    "versions",
]
