"""Output of the commands, compared with stored output: ``tests/operate/cli/expected``.

``UPDATE_VIEWS=1 pytest tests/operate/cli/test_views.py`` writes these files again; look at their
difference before it is committed.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text
from sqlalchemy import delete
from tests.flow.samples import state_of_stage
from tests.journal.samples import numbered, segments_of
from tests.operate.cli import histories as past
from tests.operate.cli.outcomes import LETTER, NOW_MS, Shop, damage, planned
from tests.services.ledgers import gated_ledger, new_ledger

from headrace.core.ranges import OffsetRange
from headrace.flow.signal_codec import encode
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.gates import GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import (
    Finding,
    FindingKind,
    Missed,
    Span,
    Verification,
)
from headrace.gate.ledger.receivers import ReceiverRecord
from headrace.gate.ledger.records import (
    BatchRecord,
    DeadLetterRecord,
    DeadLetterStatus,
    GateRecord,
    Loss,
    PlannedRange,
    RateSample,
    Unresolved,
)
from headrace.gate.ledger.tables import batch_range
from headrace.gate.ledger.transitions import Status
from headrace.journal import (
    Journal,
    JournalFinding,
    JournalFindingKind,
    JournalVerification,
    prune,
    verify,
)
from headrace.operate.cli.backfill import plan_table
from headrace.operate.cli.batches_command import batch_view, batches_view
from headrace.operate.cli.dead_letters_command import letters_table
from headrace.operate.cli.failures import failures_view
from headrace.operate.cli.gate_view import GateView
from headrace.operate.cli.journal_command import journal_view, pruned_table
from headrace.operate.cli.printing import middle_cut
from headrace.operate.cli.status import stages_view, status_view
from headrace.operate.cli.verify import verification_view
from headrace.operate.status.lags import GateLag
from headrace.operate.status.moment import take_snapshot
from headrace.operate.status.needs import gate_needs
from headrace.operate.status.stages import stages_of
from headrace.operate.status.states import GateHistory

EXPECTED: Final = Path(__file__).parent / "expected"
WIDTH: Final = 100
LATER_MS: Final = NOW_MS + 60_000
FIVE: Final = [planned(at, at + 10) for at in range(0, 50, 10)]


def gate(history: GateHistory) -> RenderableType:
    return GateView(take_snapshot(history, past.NOW_MS))


def a_backlog(_folder: Path) -> RenderableType:
    lags = range(9_000, 3_000, -500)
    return gate(replace(past.with_lags(*lags), ranges=past.ranges([5_000, 3_000, 0])))


def late_batches(_folder: Path) -> RenderableType:
    """The marks stand below each other, and the bar of the late batch crosses its own."""
    batches = []
    for number, took_ms in enumerate((2_000, 500)):
        begun_ms = past.NOW_MS - took_ms - number
        batch = past.a_batch(number, begun_ms, 9_000)
        batches.append(replace(batch, end_time_ms=begun_ms + took_ms))
    return gate(replace(past.with_lags(9_000, 9_500), batches=tuple(batches)))


def many_partitions(_folder: Path) -> RenderableType:
    return gate(replace(past.with_lags(9_000), ranges=past.ranges(range(300))))


def a_gate_in_trouble(_folder: Path) -> RenderableType:
    error = ErrorReport("ValueError", "\x1b[31mbad [order] {12}", "")
    failed = past.a_batch(0, past.NOW_MS, 10, status=Status.FAILED, error=error)
    history = GateHistory(
        past.a_gate(),
        (failed,),
        losses=(Loss("orders", 1, OffsetRange("orders", 0, 5, 25)),),
        missed=Missed(lost=20, skipped=1),
        unresolved=Unresolved(failed=1, dead=2, letters=2),
        receivers=(past.a_receiver(2, 80, age_ms=34_000),),
    )
    return gate(history)


def a_batch_that_is_isolated(_folder: Path) -> RenderableType:
    history = past.with_lags(9_000)
    batches = past.in_parts(runs=12, left=3_566), past.in_parts(runs=31, left=1)
    return Group(*(gate(replace(history, isolating=each)) for each in batches))


def a_gate_with_many_bad_records(_folder: Path) -> RenderableType:
    history = past.with_lags(*[900] * 40)
    error = ErrorReport("shop.PriceError", "price is -1\x1b[2J, which is below zero" * 3, "")
    return gate(replace(history, isolated={each.batch_key: error for each in history.batches[:23]}))


def receivers(_folder: Path) -> RenderableType:
    some = (past.a_receiver(0, 2_500, waiting=7), past.a_receiver(1, 1_200))
    idle = (past.a_receiver(0, 0), past.a_receiver(1, 0))
    shown = [gate(replace(past.with_lags(900), receivers=each)) for each in (some, idle)]
    return Group(*shown)


def the_lowest_rate(_folder: Path) -> RenderableType:
    batches = [past.a_batch(number, past.NOW_MS - number * 1_000, 900) for number in range(3)]
    samples = [RateSample("orders", past.NOW_MS, 100.0, 100, 1_050, 0) for _ in batches]
    return gate(GateHistory(past.a_gate(100.0), tuple(batches), tuple(samples)))


def a_short_interval(_folder: Path) -> RenderableType:
    batches = [past.a_batch(number, past.NOW_MS - number * 1_000, 900) for number in range(3)]
    slow = past.learnt(
        past.a_gate(100.0), fixed_s=1.2, record_s=4e-4, changed_ms=past.NOW_MS - 60_000
    )
    sample = RateSample("orders", past.NOW_MS, 100.0, 100, 1_240, 0)
    return gate(GateHistory(slow, tuple(batches), (sample,)))


def several_gates(_folder: Path) -> RenderableType:
    behind = replace(past.with_lags(9_000, 9_500), gate=replace(past.a_gate(), name="payments"))
    new = GateHistory(replace(past.a_gate(rate_per_s=None), name="new"))
    old = past.with_lags(9_000, 9_000, ended_ms_ago=3_600_000)
    shown = [take_snapshot(each, past.NOW_MS) for each in (past.with_lags(900), behind, new, old)]
    return status_view(shown, [])


def many_gates_in_trouble(_folder: Path) -> RenderableType:
    """More needs than there is room for: those of one kind are one line."""
    behind = take_snapshot(past.with_lags(9_000, 9_500, 10_000), past.NOW_MS)
    shown = [
        replace(behind, gate=f"topic-{number:02}", dead_letters=number % 5 // 4)
        for number in range(30)
    ]
    shown = [replace(each, needs=tuple(gate_needs(each))) for each in shown]
    return status_view(shown, [], height=18)


def a_dead_query_and_a_batch_that_hangs(_folder: Path) -> RenderableType:
    """On a short terminal what needs somebody is there, and of the gates those it is about."""
    running = past.a_batch(8, past.NOW_MS - 48_000, 9_000, status=Status.IN_PROGRESS)
    slow = replace(past.with_lags(9_000, 9_000), batches=(running,))
    gone = GateQuery(
        *("me", None, None, "process 71 on db1", "ckpt/orders", "run"),
        since_ms=past.NOW_MS - 600_000,
        until_ms=past.NOW_MS - 160_000,
        begins=1,
    )
    dead = replace(past.with_lags(9_000), gone=gone)
    isolated = replace(slow, isolating=past.in_parts(runs=12, left=892))
    fine = [
        replace(past.with_lags(900), gate=replace(past.a_gate(), name=f"fine-{number:02}"))
        for number in range(30)
    ]
    found = [
        take_snapshot(replace(each, gate=replace(each.gate, name=name)), past.NOW_MS, lag)
        for each, name, lag in (
            (slow, "slow", GateLag(seconds=185.0, retention_left_s=720.0)),
            (dead, "dead", None),
            (isolated, "isolated", None),
            *((each, each.gate.name, None) for each in fine),
        )
    ]
    return Group(status_view(found, [], height=18), *(GateView(each) for each in found[:3]))


def stages(folder: Path) -> RenderableType:
    with new_ledger(f"sqlite:///{folder}/flow.db") as ledger:
        for stage, throttled_by in [("a", "b"), ("b", "c"), ("c", None)]:
            state = state_of_stage(stage, throttled_by, queue_bytes=1_250_000)
            ledger.signals.publish("clicks", stage, encode(state))
        alone = replace(state_of_stage("d"), missing_upstream="c2")
        ledger.signals.publish("clicks", "d", encode(alone))
        return stages_view(stages_of(ledger, NOW_MS), NOW_MS)


def in_time(batch: BatchRecord) -> BatchRecord:
    """With a lease by the clock of the test, where the database has measured one."""
    until_ms = {"a backfill": LATER_MS + 5_000}.get(batch.owner or "")
    return replace(batch, lease_until_ms=until_ms)


def batches(folder: Path) -> RenderableType:
    shop = Shop(folder)
    with Ledger.open(shop.url) as ledger:
        found = ledger.batches.newest(limit=20)
    lost = {shop.good: [Loss("orders", 1, OffsetRange("orders", 0, 5, 7))]}
    return Group(
        batches_view(found, LATER_MS, name_gates=False, losses=lost),
        batches_view(found[:2], LATER_MS, name_gates=True),
    )


def one_batch(name: str) -> Callable[[Path], RenderableType]:
    def shown(folder: Path) -> RenderableType:
        shop = Shop(folder)
        key = getattr(shop, name)
        with Ledger.open(shop.url) as ledger:
            (batch,) = ledger.batches.with_prefix(key)
            ranges = ledger.batches.ranges(key)
        losses = {shop.failed: [Loss("orders", 1, OffsetRange("orders", 0, 15, 17), reason="gone")]}
        return batch_view(in_time(batch), ranges, losses, LATER_MS)

    return shown


def letters_of(ledger: Ledger) -> list[DeadLetterRecord]:
    return [replace(each, created_ms=NOW_MS) for each in ledger.dead_letters.oldest()]


def failures(folder: Path) -> RenderableType:
    shop = Shop(folder)
    with Ledger.open(shop.url) as ledger:
        found = [in_time(batch) for batch in ledger.batches.unresolved(None, 9)]
        letters = letters_of(ledger)
    found[2] = replace(found[2], lease_until_ms=NOW_MS, attempts=2)
    return Group(
        failures_view(found, letters, 9, LATER_MS, name_gates=False),
        Text(),
        failures_view(found, [], 2, LATER_MS, name_gates=True),
    )


def dead_letters(folder: Path) -> RenderableType:
    shop = Shop(folder)
    with Ledger.open(shop.url) as ledger:
        (letter,) = letters_of(ledger)
    binary = replace(letter, letter=replace(LETTER, value=None, topic="clicks"), gate="clicks")
    dropped = replace(letter, status=DeadLetterStatus.DROPPED, resolution="a test order")
    return Group(
        letters_table([letter, binary], LATER_MS, name_gates=True, last="value"),
        letters_table([dropped], LATER_MS, name_gates=False, last="resolution"),
    )


def a_plan(folder: Path) -> RenderableType:
    with Ledger.open(Shop(folder).url) as ledger:
        found = ledger.batches.unresolved(None, 9)
    gone = {batch.batch_key: list[OffsetRange]() for batch in found}
    gone[found[1].batch_key] = [OffsetRange("orders", 0, 20, 30)]
    gone[found[2].batch_key] = [OffsetRange("orders", 0, 30, 34)]
    return plan_table(found, gone)


def what_is_open(folder: Path) -> RenderableType:
    with Ledger.open(Shop(folder).url) as ledger:
        return verification_view("orders", ledger.proofs.verify("orders"), ["A note."])


def what_is_broken(folder: Path) -> RenderableType:
    url = f"sqlite:///{folder}/broken.db"
    others = tuple(
        planned(start, 80, checkpoint_id=name)
        for start, name in ((70, "another run"), (75, "a third run"))
    )
    with gated_ledger(url, "orders", *FIVE, *others, clock=lambda: NOW_MS) as ledger:
        ledger.gates.declare("new", interval_ms=1, source="kafka", estimator="pid")
        ledger.history.record_losses("orders", [OffsetRange("orders", 0, 50, 60)])
        damage(url, delete(batch_range).where(batch_range.c.start_offset == 20))
        shown = [verification_view(each, ledger.proofs.verify(each)) for each in ("orders", "new")]
    return Group(*shown)


def what_is_pruned(folder: Path) -> RenderableType:
    url = f"sqlite:///{folder}/pruned.db"
    with gated_ledger(url, "orders", *FIVE, clock=lambda: NOW_MS) as ledger:
        ledger.history.prune(NOW_MS * 2)
        return verification_view("orders", ledger.proofs.verify("orders"))


def a_span(partition: int, processed: int = 0, still_open: int = 0, missing: int = 0) -> Span:
    span = Span("run", OffsetRange("orders", partition, 0, 10), 1)
    return replace(span, processed=processed, open=still_open, missing=missing)


def many_spans_and_findings(_folder: Path) -> RenderableType:
    """Those spans are shown of which there is something to say, and a batch is one sentence."""
    quiet = tuple(a_span(number, processed=10) for number in range(500))
    one = (*quiet[:400], a_span(400, processed=7, still_open=3), *quiet[401:])
    telling = tuple(a_span(number, missing=10) for number in range(500))
    findings = [
        Finding(FindingKind.OPEN, a_span(at).offsets, "run", f"{n:08}", status=Status.FAILED)
        for n in range(50)
        for at in range(3)
    ]
    found = [(quiet, ()), (one, tuple(findings)), (telling, ())]
    return Group(*(verification_view("orders", Verification(*each)) for each in found))


def journals(folder: Path) -> RenderableType:
    made = Journal.open(str(folder / "orders"), create=True)
    with segments_of(1), made.writer(0) as writer:
        for start, until in ((0, 3), (3, 10), (10, 12)):
            writer.append(numbered(start, until))
    made.writer(7).close()
    whole = journal_view(made.name, verify(made))
    with new_ledger(f"sqlite:///{folder}/headrace.db") as ledger:
        lanes = prune(made, ledger, 0, now_ms=LATER_MS * 2, unread=True, dry_run=True)
    removed = [replace(each, stored_bytes=0, kept_bytes=2**20) for each in lanes]
    (folder / "orders" / "0" / f"{3:020d}.segment").write_bytes(b"")
    found = verify(made)
    named = [replace(each, reason="it is cut off") for each in found.findings]
    broken = replace(found, findings=tuple(named))
    return Group(whole, pruned_table(removed), journal_view(made.name, broken))


VIEWS: Final[dict[str, Callable[[Path], RenderableType]]] = {
    each.__name__: each
    for each in (
        *(
            a_backlog,
            late_batches,
            many_partitions,
            a_gate_in_trouble,
            a_batch_that_is_isolated,
            a_gate_with_many_bad_records,
            receivers,
        ),
        *(the_lowest_rate, a_short_interval, several_gates, stages, batches, failures),
        *(a_dead_query_and_a_batch_that_hangs, many_gates_in_trouble),
        *(dead_letters, a_plan),
        *(what_is_open, what_is_broken, what_is_pruned, many_spans_and_findings, journals),
    )
} | {f"batch_{name}": one_batch(name) for name in ("good", "failed", "busy", "dead", "isolated")}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_as_it_was(name: str, tmp_path: Path) -> None:
    view = VIEWS[name](tmp_path)
    for width in (80, 120):
        lines = past.text_of(view, width).splitlines()
        assert max(map(cell_len, lines)) <= width
    text = "".join(f"{line.rstrip()}\n" for line in past.text_of(view, WIDTH).splitlines())
    assert "\x1b" not in text
    file = EXPECTED / f"{name}.txt"
    if os.environ.get("UPDATE_VIEWS"):
        file.write_text(text)
    assert file.read_text() == text, "UPDATE_VIEWS=1 writes what is expected"


def test_nothing_is_expected_of_views_that_are_gone() -> None:
    assert sorted(file.stem for file in EXPECTED.iterdir()) == sorted(VIEWS)


def test_many_findings_of_a_journal_are_counted() -> None:
    """Beyond 100; so many lines are not kept in a file."""
    finding = JournalFinding(JournalFindingKind.GAP, "0/1.segment", 0, 1, 2, "nothing is there")
    shown = past.text_of(journal_view("orders", JournalVerification((), (finding,) * 102)))
    assert shown.count("gap") == 100
    assert "and 2 more; --json lists all findings." in shown


whole = st.integers(0, 2**63 - 1)
words = st.text(max_size=30)
errors = st.builds(ErrorReport, words, st.text(max_size=200), words)
OF_TYPE: Final[dict[object, st.SearchStrategy[Any]]] = {
    int: whole,
    str: words,
    float: st.floats(0, 1e300),
    int | None: st.none() | whole,
    str | None: st.none() | words,
    float | None: st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ErrorReport | None: st.none() | errors,
    Status: st.sampled_from(Status),
}
offsets = st.builds(OffsetRange, words, st.integers(0, 2**31), whole, whole)


def any_of(record: type, **own: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A record with any values in those fields whose type has some, or that are named."""
    types = get_type_hints(record)
    known = [each.name for each in fields(record) if types[each.name] in OF_TYPE]
    return st.builds(record, **{name: OF_TYPE[types[name]] for name in known} | own)


def some(records: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[Any]:
    return st.lists(records, max_size=most).map(tuple)


def any_history() -> st.SearchStrategy[GateHistory]:
    either = st.sampled_from(["a", "b"])
    batch = any_of(BatchRecord, checkpoint_id=either, attempts=st.integers(1, 3))
    return st.builds(
        GateHistory,
        gate=any_of(GateRecord, interval_ms=st.integers(1, 2**40)),
        batches=some(batch, 20),
        samples=some(any_of(RateSample), 3),
        ranges=some(any_of(PlannedRange, offsets=offsets), 30),
        losses=some(any_of(Loss, offsets=offsets), 2),
        receivers=some(any_of(ReceiverRecord, lane=st.integers(0, 99_999)), 3),
    )


@given(any_history(), st.sampled_from([20, 80, 100, 200]), whole)
def test_whatever_the_ledger_holds_is_shown_within_the_terminal(
    history: GateHistory, width: int, now_ms: int
) -> None:
    snapshot = take_snapshot(history, now_ms)
    for picture in (GateView(snapshot), status_view([snapshot, snapshot], [])):
        lines = past.text_of(picture, width).splitlines()
        assert lines
        assert all(cell_len(line) <= width for line in lines)
    if width >= 80:
        assert len(past.text_of(GateView(snapshot), width).splitlines()) <= 38


@given(
    st.lists(
        st.sampled_from(["word ", "`headrace adopt orders ID --why TEXT` ", "; "]), max_size=9
    ),
    st.integers(0, 200),
)
def test_a_text_that_is_cut_has_each_command_whole_or_not_at_all(
    words: list[str], most: int
) -> None:
    text = "".join(words)
    cut = middle_cut(text, most)
    assert len(cut) <= max(most, len(text) if most < 4 else 0)
    if most >= 4:
        assert set(re.findall("`[^`]*`?", cut)) <= {"`headrace adopt orders ID --why TEXT`"}
