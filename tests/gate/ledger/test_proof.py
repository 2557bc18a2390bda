"""A gate's history is proven, and what is missing, there twice or lost in it is named."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.readers import Readers, Step, steps
from tests.gate.ledger.samples import a_batch, a_range, batch_number, convict
from tests.services.examples import examples

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.history import lost_records
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import DEFECTS, FindingKind, Span, Verdict, Verification
from headrace.gate.ledger.records import DeadLetter, PlannedBatch
from headrace.gate.ledger.tables import batch_table
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

ERROR = ErrorReport("ValueError", "no", "Traceback ...")
SHOWN_ERROR = replace(ERROR, trace="")
NUMBERS = itertools.count()


def planned(
    *ranges: OffsetRange, run: str = "run", topic_id: str | None = None, gate: str = "orders"
) -> PlannedBatch:
    batch = a_batch(*ranges, checkpoint_id=run, gate=gate)
    return replace(batch, ranges=tuple(replace(it, topic_id=topic_id) for it in batch.ranges))


def read(ledger: Ledger, *ranges: tuple[int, int], **options: Any) -> list[str]:
    """Process a batch of each of these ranges of partition 0."""
    keys = []
    for start, until in ranges:
        keys.append(ledger.batches.begin(planned(a_range(start, until), **options)).batch_key)
        ledger.batches.succeed(keys[-1])
    return keys


def lose(
    ledger: Ledger, start: int, until: int, topic_id: str | None = None, **options: Any
) -> None:
    ids = {} if topic_id is None else {"orders": topic_id}
    ledger.history.record_losses("orders", [a_range(start, until)], ids, **options)


def named(verification: Verification) -> list[tuple[FindingKind, int, int]]:
    return [(it.kind, it.offsets.start, it.offsets.until) for it in verification.findings]


def in_all(span: Span) -> int:
    return sum(
        (span.processed, span.pruned, span.open, span.dead, span.lost, span.missing),
    )


# Whatever the history


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps())
def test_whatever_becomes_of_batches_there_is_no_defect_and_every_offset_is_counted(
    ledger: Ledger, story: list[Step]
) -> None:
    number = next(NUMBERS)
    names = (f"a{number}", f"b{number}")
    readers = Readers(ledger, f"topic {number}", names)
    for step in story:
        readers.step(step)
    for name in names:
        result = ledger.proofs.verify(name)
        assert not DEFECTS & {it.kind for it in result.findings}
        assert all(in_all(span) == span.offsets.count for span in result.spans)
        counted: Counter[Status] = Counter()
        for it in ledger.history.coverage(name):
            counted[it.status] += it.offsets.count
        done = sum(span.processed + span.pruned for span in result.spans)
        dead = sum(span.dead for span in result.spans)
        # A record that is kept as a dead letter is of a batch that is a success.
        kept = len(ledger.dead_letters.oldest(name))
        assert done == counted[Status.SUCCESS] - kept
        assert dead == counted[Status.DEAD] + kept


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=8, unique=True),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=3),
)
def test_gaps_overlaps_and_losses_are_just_the_offsets_that_are_so(
    ledger: Ledger, batches: Sequence[tuple[int, int]], losses: Sequence[tuple[int, int]]
) -> None:
    gate = f"gate {next(NUMBERS)}"
    ledger.gates.declare(gate, interval_ms=1, source="kafka", estimator="pid")
    times: Counter[int] = Counter()
    newest = (max(start + length for start, length in batches), 1)
    for start, length in (*sorted(batches), newest):
        batch = planned(a_range(start, start + length), gate=gate)
        ledger.batches.succeed(ledger.batches.begin(batch).batch_key)
        times.update(range(start, start + length))
    gone: set[int] = set()
    for start, length in losses:
        ledger.history.record_losses(gate, [a_range(start, start + length)])
        gone.update(range(start, start + length))
    hull = set(range(min(times), max(times) + 1))
    offsets: dict[FindingKind, set[int]] = {kind: set() for kind in FindingKind}
    for it in ledger.proofs.verify(gate).findings:
        offsets[it.kind] |= set(range(it.offsets.start, it.offsets.until))
    assert offsets[FindingKind.GAP] == hull - times.keys() - gone
    assert offsets[FindingKind.OVERLAP] == {offset for offset, n in times.items() if n > 1}
    assert offsets[FindingKind.LOST] == gone - times.keys()


# What is missing, or there twice


@pytest.mark.parametrize("number", range(4))
def test_a_batch_that_is_gone_is_named_wherever_it_was(
    ledger: Ledger, execute: Execute, number: int
) -> None:
    keys = read(ledger, *((at, at + 10) for at in range(0, 40, 10)))
    execute(delete(batch_table).where(batch_table.c.batch_key == keys[number]))
    result = ledger.proofs.verify("orders")
    kind = FindingKind.GAP if number in (1, 2) else FindingKind.MISSING
    assert named(result) == [(kind, number * 10, number * 10 + 10)]
    assert result.verdict is Verdict.BROKEN
    if kind is FindingKind.GAP:
        (gap,) = result.findings
        assert (gap.other, gap.batch_key) == (keys[number - 1], keys[number + 1])
        assert result.spans[0].missing == 10


def test_an_overlap_names_both_batches_if_they_are_neighbours(ledger: Ledger) -> None:
    low, inner, high = read(ledger, (0, 10), (2, 4), (5, 20))
    overlaps = ledger.proofs.verify("orders").findings
    assert [(it.offsets, it.batch_key, it.other) for it in overlaps] == [
        (a_range(2, 4), inner, low),
        (a_range(5, 10), high, None),
    ]


def test_a_topic_that_was_recreated_is_a_topic_of_its_own(ledger: Ledger) -> None:
    read(ledger, (0, 30), topic_id="A")
    read(ledger, (0, 10), (15, 20), topic_id="B")
    read(ledger, (5, 25), topic_id="A", run="z")
    lose(ledger, 10, 12, "A")
    result = ledger.proofs.verify("orders")
    assert [(it.kind, it.offsets, it.topic_id) for it in result.findings] == [
        (FindingKind.GAP, a_range(10, 15), "B"),
        (FindingKind.READ_AGAIN, a_range(5, 25), "A"),
    ]
    counts = {(it.checkpoint_id, it.topic_id): (it.processed, it.missing) for it in result.spans}
    assert counts == {("run", "A"): (30, 0), ("run", "B"): (15, 5), ("z", "A"): (20, 0)}


def test_runs_come_by_age_and_one_that_is_all_pruned_first(
    ledger: Ledger, clock: ManualClock
) -> None:
    for run in ("c", "b", "a"):
        read(ledger, (0, 10), run=run)
        clock.now_ms += 1_000
    ledger.history.prune(clock() - 2_500)
    assert [(it.checkpoint_id, it.pruned) for it in ledger.proofs.verify("orders").spans] == [
        *(("c", 10), ("b", 0), ("a", 0))
    ]


def test_where_a_run_begins_counts_before_it_has_read_anything(ledger: Ledger) -> None:
    read(ledger, (0, 30), topic_id="A")
    ledger.batches.begin_checkpoint(planned(a_range(40, 40), run="new", topic_id="A"))
    result = ledger.proofs.verify("orders")
    assert named(result) == [(FindingKind.SKIPPED, 30, 40)]
    assert (result.verdict, len(result.spans)) == (Verdict.SKIPPED, 1)
    assert ledger.proofs.missed("orders").skipped == 10


# What is not processed


def test_what_was_lost_before_it_was_planned_explains_gaps_and_skips(ledger: Ledger) -> None:
    lose(ledger, 0, 5)
    read(ledger, (5, 10), (30, 40))
    lose(ledger, 15, 20)
    lose(ledger, 18, 25)
    lose(ledger, 40, 45)
    result = ledger.proofs.verify("orders")
    assert named(result) == [
        (FindingKind.GAP, 10, 15),
        (FindingKind.GAP, 25, 30),
        (FindingKind.LOST, 0, 5),
        (FindingKind.LOST, 15, 25),
        (FindingKind.LOST, 40, 45),
    ]
    assert (result.spans[0].missing, result.spans[0].lost) == (10, 10)
    read(ledger, (50, 60), run="another")
    assert (FindingKind.SKIPPED, 45, 50) in named(ledger.proofs.verify("orders"))


@pytest.mark.parametrize("is_pruned", [False, True])
def test_what_a_batch_could_not_read_is_lost_and_not_processed(
    ledger: Ledger, clock: ManualClock, *, is_pruned: bool
) -> None:
    first, _ = read(ledger, (0, 10), (10, 20))
    failed = ledger.batches.begin(planned(a_range(20, 30))).batch_key
    ledger.batches.fail(failed, ERROR)
    lose(ledger, 2, 6, batch_key=first, reasons={a_range(2, 6): "it was deleted"})
    lose(ledger, 4, 8, batch_key=first)
    lose(ledger, 22, 24, batch_key=failed)
    clock.now_ms += 1_000
    if is_pruned:
        ledger.history.prune(clock())
    result = ledger.proofs.verify("orders")
    (span,) = result.spans
    assert (span.processed + span.pruned, span.lost, span.open) == (14, 6, 10)
    lost = [it for it in result.findings if it.kind is FindingKind.LOST]
    assert [(it.offsets, it.batch_key, it.reason) for it in lost] == [
        (a_range(2, 6), first, "it was deleted"),
        (a_range(6, 8), first, None),
    ]
    assert ledger.proofs.missed("orders").lost == 6


def test_a_ledger_is_proven(ledger: Ledger, clock: ManualClock) -> None:
    begun = [ledger.batches.begin(batch_number(number)).batch_key for number in (0, 1, 2, 5)]
    first_ms = clock.now_ms
    lose(ledger, 30, 50)
    ledger.batches.succeed(begun[0])
    ledger.batches.fail(begun[1], ERROR)
    ledger.batches.attach(begun[2], 3, owner="me", lease_ms=1_000)
    letter = DeadLetter("orders", 0, 20, None, b"?", None, 1, 0, ERROR)
    convict(ledger, begun[2], letter)
    result = ledger.proofs.verify("orders")
    assert named(result) == [
        (FindingKind.OPEN, 10, 20),
        (FindingKind.OPEN, 50, 60),
        (FindingKind.REJECTED, 20, 21),
        (FindingKind.LOST, 30, 50),
    ]
    assert [it.error for it in result.findings] == [SHOWN_ERROR, None, SHOWN_ERROR, None]
    assert result.verdict is Verdict.OPEN
    assert result.spans == (
        Span("run", a_range(0, 60), first_ms, processed=19, open=20, dead=1, lost=20),
    )
    assert lost_records(ledger.history.losses("orders")) == 20


@pytest.mark.parametrize("status", [Status.FAILED, Status.DEAD])
def test_what_is_done_of_a_batch_in_parts_is_processed(ledger: Ledger, status: Status) -> None:
    key = ledger.batches.begin(a_batch(a_range(0, 10), a_range(0, 10, 1))).batch_key
    ledger.batches.fail(key, ERROR)
    ledger.batches.claim(key, "me", 1_000)
    letter = DeadLetter("orders", 0, 2, None, b"?", None, 1, 0, ERROR)
    done = Progress(done=frozenset(["0", "10"]))
    ledger.batches.keep_progress(key, "me", done, letter)
    if status is Status.FAILED:
        ledger.batches.release(key, "me", ERROR, is_dead=False)
    else:
        ledger.batches.mark_dead(key, "me", ERROR)
    kind = FindingKind.OPEN if status is Status.FAILED else FindingKind.DEAD
    result = ledger.proofs.verify("orders")
    assert [(it.kind, it.offsets) for it in result.findings] == [
        (kind, a_range(8, 10)),
        (kind, a_range(7, 10, 1)),
        (FindingKind.REJECTED, a_range(2, 3)),
    ]
    first, second = result.spans
    left = [span.open + span.dead for span in (first, second)]
    assert (left, first.processed, second.processed) == ([3, 3], 7, 7)


def test_what_a_handler_rejected_is_not_processed(ledger: Ledger) -> None:
    key = ledger.batches.begin(a_batch(a_range(0, 10))).batch_key
    ledger.batches.attach(key, 1, owner="me", lease_ms=1_000)
    letters = [DeadLetter("orders", 0, at, None, b"?", None, 1, 0, ERROR) for at in (3, 4, 7)]
    with ledger.batches.transaction(key, "me", rejected=lambda: letters):
        pass
    result = ledger.proofs.verify("orders")
    assert named(result) == [(FindingKind.REJECTED, 3, 5), (FindingKind.REJECTED, 7, 8)]
    assert {it.error for it in result.findings} == {SHOWN_ERROR}
    assert (result.spans[0].processed, result.spans[0].dead) == (7, 3)
    assert result.verdict is Verdict.PROVEN


def test_a_gate_that_has_read_nothing_has_nothing_to_prove(ledger: Ledger) -> None:
    assert ledger.proofs.verify("orders") == Verification((), ())


def test_a_gate_that_goes_on_meanwhile_is_proven_as_of_one_moment(url: str, ledger: Ledger) -> None:
    read(ledger, (0, 10))
    reached, is_busy = 10, False

    def go_on(*_: object) -> None:
        nonlocal reached, is_busy
        if not is_busy:
            is_busy = True
            ledger.history.record_losses("orders", [a_range(reached, reached + 1)])
            ledger.batches.begin(a_batch(a_range(reached + 1, reached + 3)))
            reached, is_busy = reached + 3, False

    with Ledger.open(url, create=False) as reader:
        event.listen(Engine, "after_cursor_execute", go_on)
        try:
            result = reader.proofs.verify("orders")
        finally:
            event.remove(Engine, "after_cursor_execute", go_on)
    assert reached > 16
    assert not DEFECTS & {it.kind for it in result.findings}
    (span,) = result.spans
    assert in_all(span) == span.offsets.count < reached
