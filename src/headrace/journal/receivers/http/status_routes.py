"""HTTP routes for the state of a receiver: ``/health``, ``/ready`` and ``/metrics``.

A receiver whose senders do not use HTTP can serve these routes on a separate status port.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.journal.receivers.connections import Connections, listen
from headrace.journal.receivers.event_log import Rejections
from headrace.journal.receivers.http.http_connection import HttpServer, Routes
from headrace.journal.receivers.http.http_message import HttpAnswer, HttpRequest, json_answer
from headrace.journal.receivers.intake import Intake
from headrace.journal.receivers.settings import HttpSettings

_PREFIX: Final = "headrace_receiver_"
_LABELS: Final = ("journal", "lane")

_STOP_S: Final = 1
_CONNECTIONS: Final = 50


def status_routes(intake: Intake) -> Routes:
    """Return the request handlers for the state of a receiver.

    They require no token, and their answers contain no records and no secrets.

    ========= ================================= ==============================================
    path      answered 200 if                   answered 503 with ``{"error": ...}`` if
    ========= ================================= ==============================================
    /health   records can be stored             records cannot be stored, as on a full disk
    /ready    records can be stored, and        records cannot be stored, all senders must
              senders need not wait             wait, or the receiver stops
    ========= ================================= ==============================================

    ``/metrics`` returns Prometheus' text format.
    """
    registry = CollectorRegistry()
    registry.register(_IntakeCollector(intake))

    async def health(_: HttpRequest) -> HttpAnswer:
        return _answer(await intake.health.trouble())

    async def ready(_: HttpRequest) -> HttpAnswer:
        if not intake.is_open:
            return _answer("The receiver stops; send to another receiver.")
        return _answer(intake.refusing or await intake.health.trouble())

    async def metrics(_: HttpRequest) -> HttpAnswer:
        # A registry of its own: the default registry adds metrics of the process.
        return HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

    return {"/health": {"GET": health}, "/ready": {"GET": ready}, "/metrics": {"GET": metrics}}


def _answer(trouble: str | None) -> HttpAnswer:
    if trouble is None:
        return json_answer({"status": "ok"})
    return json_answer({"error": trouble}, 503)


@contextlib.asynccontextmanager
async def serving_status(intake: Intake, host: str, port: int) -> AsyncIterator[int]:
    """Serve ``/health``, ``/ready`` and ``/metrics`` during the context, and yield the port number.

    Clients of this port do not count as senders, and their rejected requests are not counted.

    Raises:
        ReceiverError: The port cannot be opened.
    """
    listener = listen(host, port)
    server = HttpServer(
        status_routes(intake),
        "This path or method is unknown; use GET /health, /ready or /metrics.",
        HttpSettings(host=host, max_connections=_CONNECTIONS),
        connections=Connections(_CONNECTIONS),
        rejections=Rejections(),
    )
    serving = asyncio.create_task(server.serve(listener, None, _STOP_S))
    try:
        yield listener.getsockname()[1]
    finally:
        serving.cancel()
        await asyncio.wait([serving])


class _IntakeCollector(Collector):
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def collect(self) -> Iterator[Metric]:
        intake = self._intake
        place = [intake.health.journal, str(intake.health.lane)]
        stats = intake.statistics
        for name, text, value in (
            ("accepted_records", "Records that are durable.", stats.stored_records),
            ("accepted_bytes", "Bytes of durable keys, values and headers.", stats.stored_bytes),
            ("duplicate_records", "Records with a stored message id.", stats.duplicate_records),
            ("failed_records", "Records whose block was not stored.", stats.failed_records),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
            counter.add_metric(place, value)
            yield counter
        for name, text, value in (
            ("buffer_bytes", "Memory of records that are not durable yet.", stats.reserved_bytes),
            ("waiting_records", "Records that wait for the rate limit.", stats.waiting_records),
            ("refusing", "1 while all senders must wait; see /ready.", bool(intake.refusing)),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
            gauge.add_metric(place, value)
            yield gauge
        rejected = CounterMetricFamily(
            _PREFIX + "rejected", "Rejected requests and senders.", labels=(*_LABELS, "reason")
        )
        for reason, count in sorted(intake.rejections.totals.items()):
            rejected.add_metric([*place, reason], count)
        yield rejected
        shown = CounterMetricFamily(
            _PREFIX + "token_uses",
            "Requests and connections that sent this token.",
            labels=(*_LABELS, "token"),
        )
        for token, count in sorted(intake.token_uses.items()):
            shown.add_metric([*place, token], count)
        yield shown
        acknowledged = HistogramMetricFamily(
            _PREFIX + "acknowledge_seconds",
            "Time from the submission of records until they were durable (s).",
            labels=_LABELS,
        )
        latencies = intake.latencies
        acknowledged.add_metric(place, latencies.cumulative, latencies.sum_s)
        yield acknowledged
