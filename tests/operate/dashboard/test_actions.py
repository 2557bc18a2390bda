"""Every action by its form in a real browser, and the row that it leaves."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.operate.dashboard.conftest import Serve
from tests.operate.dashboard.histories import add_dead_letter, add_failure
from tests.services.kafka import TopicFactory, records_in

from headrace.gate.control.size_ceiling import SizeCeiling
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetterStatus

pytestmark = pytest.mark.nightly
SignIn = Callable[[str], Page]


def form(page: Page, action: str) -> Locator:
    return page.locator(f'form[action="/act/{action}"]')


def unfold(page: Page, action: str) -> None:
    """Open the form of an action on a gate, which has to be offered."""
    page.locator(f".do-{action} summary").click()


def act(page: Page, action: str, why: str = "sink migration") -> None:
    form(page, action).get_by_label("Why?").fill(why)
    form(page, action).get_by_role("button").click()
    expect(page.locator("h1")).to_have_text("Done")


def test_pause_limit_drain_and_resume(serve: Serve, url: str, signed_in: SignIn) -> None:
    address = serve(url)
    page = signed_in(address)
    with Ledger.open(url) as ledger:
        page.goto(f"{address}/gate/orders")
        expect(page.locator(".act:visible")).to_have_text(
            [re.compile(each) for each in ("^Pause", "^Drain", "^Limit")]
        )
        unfold(page, "pause")
        act(page, "pause")
        assert ledger.operator_limits.of("orders").paused
        page.locator("#back").click()
        expect(page.locator("#state")).to_contain_text("paused by Ada: sink migration")
        expect(page.locator("#operator-limits")).to_contain_text("Resume")
        unfold(page, "drain")
        act(page, "drain")
        assert ledger.operator_limits.of("orders").draining
        page.goto(f"{address}/gate/orders")
        unfold(page, "resume")
        act(page, "resume")
        assert ledger.operator_limits.of("orders").hold is None
        page.goto(f"{address}/gate/orders")
        unfold(page, "limit")
        form(page, "limit").get_by_label("Records/s").fill("250")
        form(page, "limit").get_by_label("For").fill("2 hours")
        act(page, "limit")
        limit = ledger.operator_limits.of("orders").limit
        assert limit is not None and limit.records_per_s == 250 and limit.until_ms is not None
        page.goto(f"{address}/gate/orders")
        unfold(page, "unlimit")
        act(page, "unlimit")
        assert ledger.operator_limits.of("orders").limit is None
        page.goto(f"{address}/gate/orders")
        # The page is looking by now, and nothing else changes.
        expect(page.locator("#facts")).to_contain_text("limited by")
        known = SizeCeiling(250, 564).to_text()
        ledger.gates.change_ceiling("orders", None, known)
        expect(page.locator("#facts")).to_contain_text("564 records at once failed, 250 passed")
        unfold(page, "lift-ceiling")
        act(page, "lift-ceiling")
        assert ledger.gates.ceiling("orders") is None
    page.goto(f"{address}/actions")
    expect(page.locator("#actions tbody tr")).to_have_count(6)
    expect(page.locator("#actions")).to_contain_text("Ada")


def test_retry_one_batch_and_all_alike(serve: Serve, url: str, signed_in: SignIn) -> None:
    with Ledger.open(url) as ledger:
        keys = [add_failure(ledger, start=10_000 + 100 * number) for number in range(3)]
        address = serve(url)
        page = signed_in(address)
        page.goto(f"{address}/batch/{keys[0]}")
        act(page, "retry")
        asked = [ledger.batches.get(key) for key in keys]
        assert [each is not None and each.retry_ms is not None for each in asked] == [
            True,
            False,
            False,
        ]
        page.goto(f"{address}/failures/alike?what=batch&gate=orders&error=ValueError")
        expect(page.locator("#why")).to_contain_text("1 retry asked for; the next one waits for")
        act(page, "retry-alike", "the sink is back")
        waits_ms = (3_600_000,)
        due = ledger.batches.failed("orders", waits_ms=waits_ms)
        assert {each.batch_key for each in due} == set(keys)
        done = ledger.operator_limits.history(None)
    assert [(each.by, each.why, each.outcome) for each in done] == [
        ("Ada", "the sink is back", "3 changed"),
        ("Ada", "sink migration", "1 changed"),
    ]


def test_drop_a_dead_letter_and_all_alike(serve: Serve, url: str, signed_in: SignIn) -> None:
    with Ledger.open(url) as ledger:
        for number in range(3):
            add_dead_letter(ledger, start=20_000 + number)
        address = serve(url)
        page = signed_in(address)
        page.goto(f"{address}/letter/1")
        act(page, "drop-letters", "a test order")
        first = ledger.dead_letters.get(1)
        assert first is not None and first.resolution == "a test order (Ada)"
        page.goto(f"{address}/failures/alike?what=letter&gate=orders&error=ValueError")
        act(page, "drop-letters", "test orders")
        assert ledger.dead_letters.oldest("orders", statuses=[DeadLetterStatus.WAITING]) == ()


def test_drop_a_dead_batch(serve: Serve, url: str, signed_in: SignIn) -> None:
    with Ledger.open(url) as ledger:
        key = add_failure(ledger)
        ledger.batches.claim(key, "me", 60_000)
        ledger.batches.mark_dead(key, "me", ValueError("gone"))
        address = serve(url)
        page = signed_in(address)
        page.goto(f"{address}/batch/{key}")
        act(page, "drop-batch", "nobody needs it")
        found = ledger.batches.get(key)
    assert found is not None and found.resolution == "nobody needs it (Ada)"


def test_a_dead_letter_is_sent_to_kafka_again(
    serve: Serve, url: str, signed_in: SignIn, topic: TopicFactory
) -> None:
    orders = topic()
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger)
        servers = orders.bootstrap_servers
        address = serve(url, "--option", f"kafka.bootstrap.servers={servers}")
        page = signed_in(address)
        page.goto(f"{address}/letter/1")
        sending = form(page, "send-letters").filter(has_text="Correct and send")
        assert sending.get_by_label("Value").input_value() == '{"amount": "12,50"}'
        sending.get_by_label("Value").fill('{"amount": 12.50}')
        sending.get_by_label("Topic").fill(orders.name)
        sending.get_by_label("Why?").fill("a comma is no point")
        sending.get_by_role("button").click()
        expect(page.locator("h1")).to_have_text("Done")
        (record,) = records_in(orders)
        assert (record.key(), record.value()) == (b"key", b'{"amount": 12.50}')
        page.locator("#back").click()
        expect(page.locator("#letter")).to_contain_text("Value that was sent in its place")
        sent = ledger.dead_letters.get(1)
        assert sent is not None and sent.status is DeadLetterStatus.SENT
        assert (sent.letter.value, sent.sent_value) == (
            b'{"amount": "12,50"}',
            b'{"amount": 12.50}',
        )
        assert [each.outcome for each in ledger.operator_limits.history(None)] == [
            "1 dead letter sent"
        ]


def test_an_action_on_what_is_gone_says_so(serve: Serve, url: str, signed_in: SignIn) -> None:
    with Ledger.open(url) as ledger:
        key = add_failure(ledger)
        address = serve(url)
        page = signed_in(address)
        page.goto(f"{address}/batch/{key}")
        ledger.batches.claim(key, "me", 60_000)
        form(page, "retry").get_by_label("Why?").fill("again")
        form(page, "retry").get_by_role("button").click()
        expect(page.get_by_role("alert").last).to_contain_text("not have the status failed any")
