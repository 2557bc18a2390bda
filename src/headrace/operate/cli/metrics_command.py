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
"""Time to wait for brokers and journals to report their waiting records (s)."""


def metrics(
    *,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    openmetrics: Annotated[
        bool,
        typer.Option("--openmetrics", help="Print OpenMetrics text instead of Prometheus text."),
    ] = False,
    per_partition: Annotated[
        bool, typer.Option("--per-partition", help="Print the lag of each partition too.")
    ] = False,
    kafka_exporter_names: Annotated[
        bool,
        typer.Option(
            "--kafka-exporter-names", help="Print the lag as kafka_consumergroup_lag too."
        ),
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

    For gates that plan no batch, or lag, the command asks the Kafka brokers or the journal for the
    number of waiting records. Sources that require secrets do not answer.
    """
    if rules and dashboard:
        raise OptionError("--rules and --dashboard are both given; give only one of them.")
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
