"""Metrics of all gates and flows in a ledger, in Prometheus' text format or in OpenMetrics."""

from typing import Final

from headrace.core.system import door

PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

__all__, __dir__, __getattr__ = door(__name__, {"metrics": "Metrics"})
