"""Metrics of all gates and flows of a ledger, for Prometheus and what reads its text.

Each module collects one subject from the ledger; `exposition` puts them together.
"""

from headrace.core.system import needs_extra

with needs_extra("metrics", "Metrics"):
    from headrace.metrics.exposition import MetricsMemory, exposition
    from headrace.metrics.families import OPENMETRICS_TYPE, PROMETHEUS_TYPE
from headrace.metrics.shipped import alert_rules, grafana_dashboard

__all__ = [
    "OPENMETRICS_TYPE",
    "PROMETHEUS_TYPE",
    "MetricsMemory",
    "alert_rules",
    "exposition",
    "grafana_dashboard",
]
