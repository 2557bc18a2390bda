"""The pages in a real browser: live, away and back, hostile text, a phone, a keyboard."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.operate.dashboard.conftest import Serve
from tests.operate.dashboard.histories import (
    HOSTILE,
    a_ledger,
    add_batch,
    add_dead_letter,
    add_failure,
)

from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.receivers import ReceiverReport

pytestmark = pytest.mark.nightly

LABELS_THAT_STICK_OUT = """[...document.querySelectorAll("td[data-label]")]
    .filter((cell) => cell.scrollHeight > cell.clientHeight + 1)
    .map((cell) => cell.dataset.label)"""
"""A label that is higher than its cell lies on the next one."""


def test_a_first_gate_appears_by_itself_where_no_ledger_was(
    serve: Serve, tmp_path: Path, page: Page
) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    answer = page.goto(serve(url))
    assert answer is not None and answer.status == 200
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#away")).to_be_hidden()
    expect(page.locator("#needs")).to_contain_text("gate = headrace.Gate(")
    expect(page.locator("table.gates")).to_be_hidden()
    with Ledger.open(url) as ledger:
        expect(page.locator("#needs")).to_contain_text("The ledger has no gate yet")
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        expect(page.locator("#gates tr")).to_have_count(1)
    expect(page.locator("#needs")).not_to_contain_text("headrace.Gate")


def test_a_batch_and_a_new_gate_appear_by_themselves(serve: Serve, url: str, page: Page) -> None:
    page.goto(serve(url))
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#gates tr")).to_have_count(1)
    with Ledger.open(url) as ledger:
        add_batch(ledger, start=500, lag=123_456)
        expect(page.locator("#gates")).to_contain_text("123,456")
        ledger.gates.declare("clicks", interval_ms=1_000, source="kafka", estimator="pid")
        expect(page.locator("#gates tr")).to_have_count(2)
        add_failure(ledger, error="the disk of the sink is full")
        expect(page.locator("#needs")).to_contain_text("the disk of the sink is full")
        add_failure(ledger, "clicks", error="there is no such table")
        ledger.gates.declare("returns", interval_ms=1_000, source="kafka", estimator="pid")
    together = page.locator("#needs summary").filter(has_text="2 gates: failed")
    together.click()
    expect(page.get_by_text("there is no such table")).to_be_visible()
    page.locator("#summary").get_by_role("link", name="2 failed").click()
    page.wait_for_url("**/?state=failed")
    expect(page.locator("#gates tr")).to_have_count(2)
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#gates tr")).to_have_count(3)


def test_a_gate_s_page_draws_its_history_and_adds_to_it(serve: Serve, url: str, page: Page) -> None:
    page.goto(f"{serve(url)}/gate/orders")
    expect(page.locator("#charts canvas")).to_have_count(3)
    expect(page.locator("#batches tbody tr")).to_have_count(5)
    with Ledger.open(url) as ledger, page.expect_response(re.compile("/series/orders")):
        add_batch(ledger, start=500)
    expect(page.locator("#batches tbody tr")).to_have_count(6)
    chart = page.locator("#charts .u-over").first
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=5)
    with page.expect_response(
        re.compile(r"/series/orders\?span=15\+min&from=\d{13}&until=\d{13}$")
    ):
        page.mouse.up()
    expect(page.locator("#charts canvas")).to_have_count(3)
    page.get_by_role("link", name="Back to the last 15 min").click()
    page.wait_for_url(re.compile(r"/gate/orders\?span=15%20min$"))


def test_a_ledger_that_goes_away_and_comes_back(
    serve: Serve, url: str, page: Page, tmp_path: Path
) -> None:
    address = serve(url)
    page.goto(address)
    expect(page.locator("#away")).to_be_hidden()
    away = tmp_path / "elsewhere"
    away.mkdir()
    files = list(tmp_path.glob("ledger.db*"))
    for file in files:
        file.rename(away / file.name)
    expect(page.locator("#away")).to_be_visible()
    expect(page.locator("#away")).to_contain_text("There is no ledger")
    expect(page.locator("#gates tr")).to_have_count(1)
    fresh = page.context.new_page()
    fresh.goto(f"{address}/gate/orders")
    expect(fresh.locator("main")).to_contain_text("nothing to show until the ledger answers")
    for file in files:
        (away / file.name).rename(file)
    expect(page.locator("#away")).to_be_hidden()
    expect(fresh.locator("#batches tbody tr")).to_have_count(5)
    with Ledger.open(url) as ledger:
        add_batch(ledger, start=500, lag=4_321)
    expect(page.locator("#gates")).to_contain_text("4,321")


def test_whatever_names_errors_and_records_say_is_text(
    serve: Serve, tmp_path: Path, page: Page
) -> None:
    url = a_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", HOSTILE)
    with Ledger.open(url) as ledger:
        failed = add_failure(ledger, HOSTILE, error=f"{HOSTILE}\x00")
        add_dead_letter(ledger, HOSTILE, value=f"{HOSTILE}\x00".encode(), error=HOSTILE)
    address = serve(url)
    page.goto(address)
    shown = "<script>document.title='owned'</script>\\u202egpj.\\x1b[31m\"'&"
    expect(page.locator("#gates th")).to_have_text(shown)
    page.locator("#gates th a").click()
    expect(page.locator("h1")).to_have_text(shown)
    for path in ("/failures", f"/batch/{failed}", "/letter/1"):
        page.goto(address + path)
        expect(page.locator("main")).to_contain_text(shown)
        assert page.title().endswith("Headrace")
        assert page.locator("main script").count() == 0
    expect(page.locator("#letter")).to_contain_text("\\x00")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone(serve: Serve, url: str, page: Page, scheme: str) -> None:
    with Ledger.open(url) as ledger:
        failed = add_failure(ledger)
        add_dead_letter(ledger)
        ledger.receivers.heartbeat(a_receiver())
    address = serve(url)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 375, "height": 800})
    alike = "&gate=orders&error=ValueError"
    groups = [f"/failures/alike?what={what}{alike}" for what in ("batch", "letter")]
    for path in (
        *(
            "/",
            "/gate/orders",
            "/batches?gate=orders",
            "/partitions?gate=orders",
            "/failures",
            *groups,
            f"/batch/{failed}",
            "/letter/1",
        ),
        *("/flows", "/receivers", "/verify?gate=orders", "/actions?gate=orders", "/sign-in"),
    ):
        page.goto(address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        assert page.evaluate(LABELS_THAT_STICK_OUT) == [], path


def a_receiver() -> ReceiverReport:
    now_ms = wall_clock_ms()
    return ReceiverReport(
        "orders",
        "5ca1ab1e",
        0,
        "events",
        "me",
        now_ms,
        2_500.0,
        None,
        1_000.0,
        10_000,
        10,
        0,
        7,
        None,
        {"HTTP 429": 1_200, "HTTP 401": 3},
    )


def test_receivers_and_the_proof_have_pages(serve: Serve, url: str, page: Page) -> None:
    with Ledger.open(url) as ledger:
        ledger.receivers.heartbeat(a_receiver())
    address = serve(url)
    page.goto(f"{address}/receivers")
    expect(page.locator("#receivers")).to_contain_text("limited")
    expect(page.locator("#receivers")).to_contain_text("1,200 x HTTP 429, 3 x HTTP 401")
    page.goto(f"{address}/verify")
    page.get_by_role("button", name="Verify").click()
    expect(page.locator("#proof")).to_contain_text("proven")
    expect(page.locator("#proof")).to_contain_text("orders-0 [0, 500)")


def test_everything_on_the_overview_is_reached_by_the_keyboard(
    serve: Serve, url: str, page: Page
) -> None:
    page.goto(serve(url))
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert reached[0] == "Skip to the page"
    assert {"Failures", "Sign in", "Show", "lag", "orders"} <= set(reached)
    page.get_by_role("link", name="orders").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders")


def test_what_is_focused_and_open_stays_so_when_the_page_changes(
    serve: Serve, url: str, page: Page
) -> None:
    with Ledger.open(url) as ledger:
        failed = add_failure(ledger)
        page.goto(f"{serve(url)}/batch/{failed}")
        page.get_by_text("The trace").click()
        ledger.repairs.retry("orders", [failed], "Ada", "the sink is back")
        expect(page.locator("#why")).to_contain_text("no query runs behind the gate")
    assert page.locator("details").first.get_attribute("open") is not None
    assert page.evaluate("document.activeElement.textContent") == "The trace"


def test_a_batch_on_the_timeline_says_what_it_is_to_the_keyboard_and_leads_to_its_page(
    serve: Serve, url: str, page: Page
) -> None:
    page.goto(f"{serve(url)}/gate/orders")
    expect(page.locator("#live")).to_have_text("live")
    bars, notes = page.locator("#timeline a"), page.locator("#timeline a .tip")
    expect(bars).to_have_count(5)
    page.locator("#charts").click()
    while page.evaluate("document.activeElement.closest('#timeline')") is None:
        page.keyboard.press("Tab")
    expect(notes.first).to_be_visible()
    expect(notes.first).to_contain_text("100 records")
    with Ledger.open(url) as ledger:
        add_batch(ledger, start=500)
    expect(bars).to_have_count(6)
    expect(notes.first).to_be_visible()
    target = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{target}")


def test_a_failed_batch_is_three_clicks_from_the_overview_to_the_action(
    serve: Serve, url: str, signed_in: Callable[[str], Page]
) -> None:
    with Ledger.open(url) as ledger:
        add_failure(ledger)
    page = signed_in(serve(url))
    page.locator("#needs a").first.click()
    page.locator("#groups th a").click()
    page.get_by_label("Why?").first.fill("the sink is back")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_role("status").last).to_contain_text("does not wait")
