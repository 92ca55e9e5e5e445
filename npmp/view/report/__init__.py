"""Self-contained HTML pages: figures, tables, charts, an interactive 3-D replay, provenance.

from npmp import report
report.build(Path("runs/demo/report.html"), title="Demo", rollouts=Path("runs/demo/rollouts.h5"))
"""

from npmp.view.report.page import build
from npmp.view.report.parts import check_replaceable
from npmp.view.report.provenance import machine_summary, versions

__all__ = ["build", "check_replaceable", "machine_summary", "versions"]
