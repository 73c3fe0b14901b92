"""The deployment report of one workload on one GPU under one stack: as HTML, Markdown and JSON."""

from sparsesim.report.build import build_report
from sparsesim.report.document import SCHEMA, Report
from sparsesim.report.render import html, markdown

__all__ = ["SCHEMA", "Report", "build_report", "html", "markdown"]
