"""One self-contained HTML page for a run: figures, tables, charts, an interactive 3-D replay, provenance.

from experiments import report
report.build(Path("runs/demo/report.html"), report.ReportData(title="Demo", rollouts=Path("runs/demo/rollouts.h5")))
"""

from experiments.report.data import (
    ReportData,
    Rollout,
    Rollouts,
    Walking,
    machine_summary,
    read_metrics,
    read_rollouts,
    retarget_rows,
    scrub,
    versions,
)
from experiments.report.page import build

__all__ = [
    "ReportData",
    "Rollout",
    "Rollouts",
    "Walking",
    "build",
    "machine_summary",
    "read_metrics",
    "read_rollouts",
    "retarget_rows",
    "scrub",
    "versions",
]
