"""The driver's side of a task and a sender's, as a test has them."""

import threading
from typing import Final

import httpx
from tests.services.waiting import wait_until

from headrace.errors import HeadraceError
from headrace.journal import Journal
from headrace.journal.receivers.spark.reporting import Order, Report

WAIT_S: Final = 180.0
"""The first task of a Spark that has just begun takes its time on a busy machine."""

TOKEN: Final = "t0ken"  # noqa: S105


class Driven:
    """Keeps what tasks report, and answers with an order."""

    def __init__(self) -> None:
        self.order = Order.RECEIVE
        self.reports: list[Report] = []
        self.connections: set[object] = set()
        self.gone = threading.Event()

    def reported(self, connection: object, report: Report) -> Order:
        self.reports.append(report)
        self.connections.add(connection)
        return self.order

    def left(self, connection: object) -> None:
        self.connections.remove(connection)
        self.gone.set()

    def wait_for_receiving(self) -> Report:
        wait_until(lambda: self.reports and self.reports[-1].receiving)
        return self.reports[-1]


def post(address: str | None, line: str, **headers: str) -> int:
    """Send a record; answers the status."""
    assert address
    headers = {"content-type": "text/plain"} | headers
    sent = httpx.post(address, content=line, headers=headers, timeout=WAIT_S, trust_env=False)
    return sent.status_code


def is_free(journal: str, lane: int = 0) -> bool:
    """Whether nobody writes a lane."""
    try:
        with Journal.open(journal).writer(lane):
            return True
    except HeadraceError:
        return False
