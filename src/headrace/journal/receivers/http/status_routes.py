"""A receiver's state over HTTP: ``/health``, ``/ready`` and ``/metrics``.

A receiver that speaks no HTTP to its senders has a port of its own for them.
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
    """The routes; none of them needs a token, and none shows a record or a secret.

    ========= ===== ============================================================================
    path      200   503, with ``{"error": ...}``
    ========= ===== ============================================================================
    /health   records can be stored                  nothing can: a full disk, for one
    /ready    the same, and senders need not wait    it stops, or its intake refuses
    ========= ===== ============================================================================

    ``/metrics`` is Prometheus' text.
    """
    registry = CollectorRegistry()
    registry.register(_IntakeCollector(intake))

    async def health(_: HttpRequest) -> HttpAnswer:
        return _answer(await intake.health.trouble())

    async def ready(_: HttpRequest) -> HttpAnswer:
        if not intake.is_open:
            return _answer("The receiver stops; send to another one.")
        return _answer(intake.refusing or await intake.health.trouble())

    async def metrics(_: HttpRequest) -> HttpAnswer:
        # Its default is to count what the process has done too: memory, descriptors, time.
        return HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

    return {"/health": {"GET": health}, "/ready": {"GET": ready}, "/metrics": {"GET": metrics}}


def _answer(trouble: str | None) -> HttpAnswer:
    if trouble is None:
        return json_answer({"status": "ok"})
    return json_answer({"error": trouble}, 503)


@contextlib.asynccontextmanager
async def serving_status(intake: Intake, host: str, port: int) -> AsyncIterator[int]:
    """Serve ``/health``, ``/ready`` and ``/metrics``; answers the port.

    Its clients do not count among the senders, nor what is wrong with their requests.

    Raises:
        ReceiverError: The port cannot be opened.
    """
    listener = listen(host, port)
    server = HttpServer(
        status_routes(intake),
        "There are GET /health, /ready and /metrics; use one of them.",
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
        done = intake.statistics
        for name, text, value in (
            ("accepted_records", "Records that are durable.", done.stored_records),
            ("accepted_bytes", "Their keys, values and headers.", done.stored_bytes),
            ("duplicate_records", "Records taken before, by their ids.", done.duplicate_records),
            ("failed_records", "Records whose block was not stored.", done.failed_records),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
            counter.add_metric(place, value)
            yield counter
        for name, text, value in (
            ("buffer_bytes", "Memory of records that are not durable yet.", done.reserved_bytes),
            ("waiting_records", "Those of them that wait for the rate.", done.waiting_records),
            (
                "refusing",
                "1 while all senders wait: see /ready.",
                bool(intake.refusing),
            ),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
            gauge.add_metric(place, value)
            yield gauge
        rejected = CounterMetricFamily(
            _PREFIX + "rejected", "Requests and senders rejected.", labels=(*_LABELS, "reason")
        )
        for reason, count in sorted(intake.rejections.totals.items()):
            rejected.add_metric([*place, reason], count)
        yield rejected
        shown = CounterMetricFamily(
            _PREFIX + "token_uses",
            "Requests and connections that showed this token.",
            labels=(*_LABELS, "token"),
        )
        for token, count in sorted(intake.token_uses.items()):
            shown.add_metric([*place, token], count)
        yield shown
        acknowledged = HistogramMetricFamily(
            _PREFIX + "acknowledge_seconds",
            "From when records were taken until they were durable.",
            labels=_LABELS,
        )
        latencies = intake.latencies
        acknowledged.add_metric(place, latencies.cumulative, latencies.sum_s)
        yield acknowledged
