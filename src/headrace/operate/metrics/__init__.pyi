from headrace.operate.metrics.scrape import MetricsMemory as MetricsMemory, exposition as exposition
from headrace.operate.metrics.shipped import (
    alert_rules as alert_rules,
    grafana_dashboard as grafana_dashboard,
)

PROMETHEUS_TYPE: str
OPENMETRICS_TYPE: str

__all__: list[str]
