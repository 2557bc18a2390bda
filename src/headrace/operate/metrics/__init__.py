"""Metrics of all gates and flows of a ledger, for Prometheus and what reads its text.

Each module collects one subject from the ledger; `exposition` puts them together.
"""

from typing import Final

from headrace.core.system import door

PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

__all__, __dir__, __getattr__ = door(__name__, {"metrics": "Metrics"})
