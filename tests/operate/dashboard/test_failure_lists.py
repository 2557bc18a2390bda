"""Lists of what failed: the reason before its class, values on a line, nobody's raw words."""

from tests.operate.dashboard.histories import (
    HOSTILE,
    add_batch,
    add_dead_letter,
    add_failure,
    planned,
)
from tests.operate.dashboard.test_lists import page_at

from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.dashboard.fleet import Fleet


def regions(url: str, ledger: Ledger, address: str) -> str:
    fleet = Fleet()
    fleet.look(ledger)
    view = page_at(url, address).look(ledger, fleet, wall_clock_ms())
    return "".join(view.regions.values())


def test_the_reason_comes_before_the_class_of_its_exception(url: str) -> None:
    with Ledger.open(url) as ledger:
        key = add_failure(ledger, error="the disk is full")
        for address in ("/failures", f"/batch/{key}", "/gate/orders"):
            html = regions(url, ledger, address)
            assert 'the disk is full <small class="name">ValueError</small>' in html, address
        for address in ("/", "/gate/orders"):
            html = regions(url, ledger, address)
            assert "ValueError: " not in html and "the disk is full (ValueError)" in html, address


def test_the_value_of_a_bad_record_stands_escaped_on_one_line(url: str) -> None:
    with Ledger.open(url) as ledger:
        key = add_dead_letter(ledger, value=f"{HOSTILE}\n{'x' * 500}".encode())
        for address in ("/failures", f"/batch/{key}"):
            html = regions(url, ledger, address)
            (_, code), *others = [each.split(">", 1) for each in html.split("<code ")[1:]]
            assert not others and code.startswith("&lt;script&gt;document"), address
            assert "\\u202e" in code and len(code.split("</code>")[0]) < 200


def test_a_batch_that_runs_is_called_so_and_no_exception_limits_one(url: str) -> None:
    with Ledger.open(url) as ledger:
        add_failure(ledger, start=500)
        add_batch(ledger, start=600)
        ledger.batches.begin(planned("orders", 700))
        html = regions(url, ledger, "/batches?gate=orders")
        assert ">running</span>" in html and "in_progress" not in html
        limits = [each.split("<")[0] for each in html.split('data-label="limited by" class="why">')]
        assert set(limits[1:]) == {"rate"}
