"""Metrics of all gates and flows of a ledger, for Prometheus and what reads its text.

Each module collects one subject from the ledger; `exposition` puts them together.
"""

from typing import TYPE_CHECKING, Final

from headrace.core.system import lazy_names
from headrace.operate.metrics.shipped import alert_rules, grafana_dashboard

if TYPE_CHECKING:
    from headrace.operate.metrics.scrape import MetricsMemory, exposition

__all__ = [
    "OPENMETRICS_TYPE",
    "PROMETHEUS_TYPE",
    "MetricsMemory",
    "alert_rules",
    "exposition",
    "grafana_dashboard",
]

PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_FROM: Final = {
    "MetricsMemory": "headrace.operate.metrics.scrape",
    "exposition": "headrace.operate.metrics.scrape",
}
"""Names that need prometheus_client (an extra), and the modules that have them."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names("headrace.operate.metrics", _FROM, {"metrics": "Metrics"})
