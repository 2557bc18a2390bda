"""Files for the metrics: alert rules for Prometheus, and a dashboard for Grafana."""

import json
from importlib.resources import files
from typing import Any, Final

_PANELS: Final = (
    ("Lag in seconds", "s", 'headrace_lag_seconds{gate=~"$gate"}', "{{gate}}"),
    ("Lag in records", "short", 'headrace_lag_records{gate=~"$gate"}', "{{gate}}"),
    ("Time until it is drained", "s", 'headrace_drain_seconds{gate=~"$gate"}', "{{gate}}"),
    (
        "Time left until retention",
        "s",
        'headrace_retention_remaining_seconds{gate=~"$gate"}',
        "{{gate}}",
    ),
    (
        "Batch time, 95 % are below",
        "s",
        "histogram_quantile(0.95, sum by (gate, le)"
        ' (rate(headrace_batch_duration_seconds_bucket{gate=~"$gate"}[5m])))',
        "{{gate}}",
    ),
    ("Interval", "s", 'headrace_batch_interval_seconds{gate=~"$gate"}', "{{gate}}"),
    (
        "Records processed a second",
        "short",
        'rate(headrace_records_total{gate=~"$gate", outcome="processed"}[5m])',
        "{{gate}}",
    ),
    ("Rate limit", "short", 'headrace_rate_limit_records_per_second{gate=~"$gate"}', "{{gate}}"),
    ("Capacity", "short", 'headrace_capacity_records_per_second{gate=~"$gate"}', "{{gate}}"),
    (
        "What limits batches",
        "short",
        'sum by (reason) (rate(headrace_batches_limited_total{gate=~"$gate"}[5m]))',
        "{{reason}}",
    ),
    (
        "Failed batches",
        "short",
        'headrace_batches_open{gate=~"$gate", status="failed"}',
        "{{gate}}",
    ),
    ("Dead letters", "short", 'headrace_dead_letters_unresolved{gate=~"$gate"}', "{{gate}}"),
    ("Queues of stages", "bytes", "headrace_stage_queue_bytes", "{{flow}} {{stage}}"),
    ("Throttle level of stages", "short", "headrace_stage_throttle_level", "{{flow}} {{stage}}"),
    (
        "Busy stages",
        "percentunit",
        'headrace_stage_time_ratio{state="busy"}',
        "{{flow}} {{stage}}",
    ),
    ("Bottlenecks", "short", "headrace_stage_bottleneck", "{{flow}} {{stage}}"),
)
"""Panels of the Grafana dashboard, two in a row: title, unit, Prometheus query and legend."""


_NAMES_GATES: Final = "headrace_batch_interval_seconds"
"""Metric whose label ``gate`` lists all gates, because each declared gate has this metric."""


def alert_rules() -> str:
    """Return the text of a file with alert rules, for ``rule_files`` in Prometheus' settings."""
    return files("headrace.operate.metrics").joinpath("alert_rules.yml").read_text(encoding="utf-8")


def _gates(source: dict[str, str]) -> dict[str, Any]:
    return {
        "name": "gate",
        "label": "Gate",
        "type": "query",
        "datasource": source,
        "query": {"query": f"label_values({_NAMES_GATES}, gate)", "refId": "gates"},
        "refresh": 2,  # at each change of the time range, because gates come and go
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def grafana_dashboard() -> str:
    """Return a dashboard as JSON to import into Grafana, which asks for the data source."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    dashboard: dict[str, Any] = {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _gates(source),
            ]
        },
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": title,
                "datasource": source,
                "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": "A", "datasource": source, "expr": query, "legendFormat": legend}
                ],
            }
            for number, (title, unit, query, legend) in enumerate(_PANELS)
        ],
    }
    return json.dumps(dashboard, indent=2)
