"""Every list goes on to its last row: whoever follows its links has seen all of it."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.operate.dashboard.histories import a_ledger, add_batch

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.dashboard.app import PAGES
from headrace.operate.dashboard.fleet import Fleet
from headrace.operate.dashboard.live import LedgerLink
from headrace.operate.dashboard.pages import Page, Site, environment

MANY = 230
"""More than two pages of every list."""


@pytest.fixture
def opened(url: str) -> Iterator[Ledger]:
    with Ledger.open(url) as ledger:
        yield ledger


def page_at(url: str, address: str) -> Page:
    at = urlsplit(address)
    site = Site(environment(), LedgerLink(url), {})
    begins, make = next(
        (b, m) for b, m in PAGES if at.path == b or (b.endswith("/") and at.path.startswith(b))
    )
    return make(site, at.path.removeprefix(begins), dict(parse_qsl(at.query)))


def followed(ledger: Ledger, url: str, address: str, row: str) -> list[str]:
    """Return the matches of all pages, from the first one to the last."""
    rows: list[str] = []
    next_one: str | None = address
    fleet = Fleet()
    fleet.look(ledger)
    while next_one is not None:
        view = page_at(url, next_one).look(ledger, fleet, wall_clock_ms())
        html = "".join(view.regions.values())
        rows += re.findall(row, html)
        link = re.search(r'<a href="([^"]+)">The next ones', html)
        next_one = unescape(link[1]) if link else None
    return rows


@pytest.mark.integration
def test_every_batch_of_a_gate_is_in_its_list(opened: Ledger, url: str) -> None:
    times = [wall_clock_ms() - 10**6]
    with Ledger.open(url, clock=lambda: times[0]) as ledger:
        for number in range(MANY):
            times[0] += 1_000
            add_batch(ledger, start=10_000 + 100 * number)
    rows = followed(opened, url, "/batches?gate=orders", r'href="/batch/(\w+)"')
    assert len(rows) == len(set(rows)) == MANY + 5


def test_every_partition_and_every_range_is_in_a_list(opened: Ledger, url: str) -> None:
    wide = tuple(PlannedRange(OffsetRange("wide", n, 0, 10), 10 + n, "rate") for n in range(450))
    batch = PlannedBatch("orders", "run", wide, "rate", "localhost:9", lag=9)
    key = opened.batches.begin(batch).batch_key
    rows = followed(opened, url, "/partitions?gate=orders", r">(wide-\d+)<")
    assert len(rows) == len(set(rows)) == 450
    assert rows[0] == "wide-449"
    rows = followed(opened, url, f"/batch/{key}", r">(wide-\d+) \[0, 10\)<")
    assert len(rows) == len(set(rows)) == 450


@pytest.mark.integration
def test_every_group_of_failures_is_in_a_list(opened: Ledger, url: str) -> None:
    for number in range(MANY):
        one = PlannedRange(OffsetRange("orders", 0, number, number + 1), number + 1, "rate")
        batch = PlannedBatch("orders", "run", (one,), "rate", "localhost:9", lag=1)
        key = opened.batches.begin(batch).batch_key
        opened.batches.fail(key, ErrorReport(f"Error{number}", "no", ""))
    rows = followed(opened, url, "/failures", r">(Error\d+)<")
    assert len(rows) == len(set(rows)) == MANY


def test_every_action_on_gates_and_on_failures_is_in_the_list(opened: Ledger, url: str) -> None:
    a_ledger(url, "returns", batches=0)
    for number in range(MANY):
        if number % 3:
            gate = "orders" if number % 2 else "returns"
            opened.operator_limits.limit(gate, 100, "Ada", f"reason {number}.")
        else:
            opened.repairs.drop_batch("orders", "none", "Ada", f"reason {number}.")
    rows = followed(opened, url, "/actions", r">(reason \d+)\.<")
    assert sorted(rows) == sorted(f"reason {number}" for number in range(MANY))
    rows = followed(opened, url, "/actions?gate=returns", r">(reason \d+)\.<")
    assert len(rows) == sum(bool(number % 3) and not number % 2 for number in range(MANY))
