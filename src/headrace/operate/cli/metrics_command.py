"""``headrace metrics``: prints the metrics of a ledger, alert rules, or a Grafana dashboard."""

import sys
from typing import Annotated, Final

import typer

from headrace.errors import OptionError
from headrace.gate import Ledger
from headrace.operate.cli import shared_options as opt
from headrace.operate.metrics.shipped import alert_rules, grafana_dashboard
from headrace.operate.status.lags import LagWatch
from headrace.operate.status.sources import Sources

WAIT_S: Final = 3.0
"""Time to wait for the sources' answers (s)."""


def metrics(
    *,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    openmetrics: Annotated[
        bool, typer.Option("--openmetrics", help="OpenMetrics' text, not Prometheus'.")
    ] = False,
    per_partition: Annotated[
        bool, typer.Option("--per-partition", help="The lag of each partition, too.")
    ] = False,
    kafka_exporter_names: Annotated[
        bool,
        typer.Option("--kafka-exporter-names", help="The same as kafka_consumergroup_lag, too."),
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Print alert rules for Prometheus, and nothing else.")
    ] = False,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Print a dashboard for Grafana, and nothing else."),
    ] = False,
) -> None:
    """Print the metrics of all gates and flows of a ledger, as Prometheus reads them.

    Of gates that plan no batch, or lag, it asks the brokers or the journal what waits there now, if
    they answer without secrets.
    """
    if rules and dashboard:
        raise OptionError("Print --rules or --dashboard, one at a time.")
    if rules:
        typer.echo(alert_rules(), nl=False)
        return
    if dashboard:
        typer.echo(grafana_dashboard())
        return
    from headrace.operate.metrics.scrape import MetricsMemory, exposition  # noqa: PLC0415  (they need an extra)

    with Ledger.open(ledger, create=False) as opened:
        text = exposition(
            opened,
            memory=MetricsMemory(LagWatch(Sources())),
            openmetrics=openmetrics,
            per_partition=per_partition,
            kafka_exporter_names=kafka_exporter_names,
            wait_s=WAIT_S,
        )
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
