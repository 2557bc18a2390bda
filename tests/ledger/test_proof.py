"""A gate's history is proven, and whatever is planted in it is found."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.ledger.covered import DONE, Told, a_range, covered, in_order, pruned, valid_histories
from tests.ledger.samples import a_batch, batch_number

from headrace.core.ranges import OffsetRange
from headrace.ledger import (
    DEFECTS,
    BatchRecord,
    Covered,
    DeadLetter,
    ErrorReport,
    FindingKind,
    Kind,
    Ledger,
    Loss,
    Rejected,
    Span,
    Status,
    Verdict,
    Verification,
    lost_records,
    verify,
)
from headrace.ledger.proof import prove
from headrace.testing import ManualClock

ERROR = ErrorReport("ValueError", "no", "Traceback ...")
TOLD_ERROR = replace(ERROR, trace="")


def a_record(batch_key: str, error: ErrorReport | None = ERROR) -> BatchRecord:
    return BatchRecord(
        batch_key=batch_key,
        gate="orders",
        checkpoint_id="run",
        kind=Kind.LIVE,
        status=Status.DEAD,
        attempts=1,
        query_batch_id=None,
        created_time_ms=1,
        start_time_ms=None,
        end_time_ms=None,
        reason="rate",
        planned_records=1,
        lag=None,
        rate_per_s=None,
        records=None,
        error=error,
    )


def proven(rows: Iterable[Covered], losses: Iterable[Loss] = ()) -> Verification:
    return prove(in_order(rows), lambda: losses, a_record)


def told(verification: Verification) -> list[tuple[FindingKind, int, int]]:
    return [(f.kind, f.offsets.start, f.offsets.until) for f in verification.findings]


def leaves(history: Told) -> list[Covered]:
    return [row for row in history.rows if not row.has_children]


# Valid histories


@given(valid_histories())
def test_a_valid_history_has_no_defect_and_is_accounted_for_to_the_last_offset(
    history: Told,
) -> None:
    result = proven(history.rows, history.losses)
    kinds = {finding.kind for finding in result.findings}
    assert not kinds & {*DEFECTS, FindingKind.SKIPPED, FindingKind.READ_AGAIN}
    for span in result.spans:
        counts = (span.processed, span.open, span.dead, span.lost, span.missing)
        assert sum(counts) == span.offsets.count
        assert span.missing == 0
    by_status: Counter[Status] = Counter()
    for leaf in leaves(history):
        by_status[leaf.status] += leaf.offsets.count
    assert sum(span.processed for span in result.spans) == by_status[Status.SUCCESS]
    assert sum(span.dead for span in result.spans) == by_status[Status.DEAD]
    is_open = any(leaf.status not in DONE for leaf in leaves(history))
    assert result.verdict is (Verdict.OPEN if is_open else Verdict.PROVEN)


@given(valid_histories())
def test_what_is_not_processed_is_found_range_by_range(history: Told) -> None:
    found = {
        (finding.batch_key, finding.offsets, finding.status)
        for finding in proven(history.rows, history.losses).findings
        if finding.kind in (FindingKind.OPEN, FindingKind.DEAD)
    }
    assert found == {
        (leaf.batch_key, leaf.offsets, leaf.status)
        for leaf in leaves(history)
        if leaf.status is not Status.SUCCESS
    }


@given(valid_histories())
def test_pruning_changes_neither_the_verdict_nor_the_counts(history: Told) -> None:
    def counted(spans: Iterable[Span]) -> set[Span]:
        return {
            replace(each, since_ms=None, processed=each.processed + each.pruned, pruned=0)
            for each in spans
        }

    whole = proven(history.rows, history.losses)
    after = pruned(history)
    rest = proven(after.rows, history.losses)
    assert rest.verdict is whole.verdict
    assert counted(rest.spans) == counted(whole.spans)
    assert sum(span.pruned for span in rest.spans) == sum(
        row.offsets.count for row in after.rows if row.batch_key is None
    )


# Planted defects are found


@given(valid_histories(), st.data())
def test_a_range_that_is_dropped_is_found(history: Told, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(history.rows))
    assume(not at_an_edge(row, history) or row.parent or row.has_children)
    result = proven([each for each in history.rows if each is not row], history.losses)
    defects = [finding for finding in result.findings if finding.kind in DEFECTS]
    assert result.verdict is Verdict.BROKEN
    assert any(d.offsets.start <= row.offsets.start < d.offsets.until for d in defects)


@given(valid_histories(), st.data())
def test_a_child_that_is_lost_is_found_as_such(history: Told, data: st.DataObject) -> None:
    parts = [row for row in history.rows if row.parent and not row.has_children]
    assume(parts)
    lost = data.draw(st.sampled_from(parts))
    result = proven([each for each in history.rows if each is not lost], history.losses)
    (defect,) = [finding for finding in result.findings if finding.kind in DEFECTS]
    assert defect.kind is FindingKind.CHILDREN
    assert (defect.offsets, defect.batch_key, defect.other) == (lost.offsets, lost.parent, None)
    assert sum(span.missing for span in result.spans) == lost.offsets.count


@given(valid_histories(may_lose=False), st.integers(-9, 9), st.data())
def test_a_range_that_is_shifted_is_found(history: Told, by: int, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(history.rows))
    assume(by and row.offsets.start + by >= 0)
    assume(row.parent or row.has_children or abs(by) < others(row, history))
    moved = replace(row.offsets, start=row.offsets.start + by, until=row.offsets.until + by)
    rows = [replace(each, offsets=moved) if each is row else each for each in history.rows]
    assert proven(rows).verdict is Verdict.BROKEN


@given(valid_histories(), st.data())
def test_a_range_that_is_there_twice_is_found(history: Told, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(history.rows))
    again = replace(row, batch_key="again")
    result = proven(data.draw(st.permutations([*history.rows, again])), history.losses)
    defects = [finding for finding in result.findings if finding.kind in DEFECTS]
    kind = FindingKind.CHILDREN if row.parent else FindingKind.OVERLAP
    assert (kind, row.offsets) in [(defect.kind, defect.offsets) for defect in defects]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=8))
def test_gaps_and_overlaps_are_just_the_offsets_that_no_range_and_several_ranges_have(
    ranges: list[tuple[int, int]],
) -> None:
    rows = [covered(start, start + length, f"{n}") for n, (start, length) in enumerate(ranges)]
    times = Counter(o for row in rows for o in range(row.offsets.start, row.offsets.until))
    found: dict[FindingKind, set[int]] = {FindingKind.GAP: set(), FindingKind.OVERLAP: set()}
    for finding in proven(rows).findings:
        found[finding.kind] |= set(range(finding.offsets.start, finding.offsets.until))
    assert found[FindingKind.GAP] == set(range(min(times), max(times) + 1)) - times.keys()
    assert found[FindingKind.OVERLAP] == {offset for offset, n in times.items() if n > 1}


def of_the_same_run(row: Covered, history: Told) -> list[Covered]:
    place = (row.checkpoint_id, row.offsets.topic_partition)
    return [r for r in history.rows if (r.checkpoint_id, r.offsets.topic_partition) == place]


def others(row: Covered, history: Told) -> int:
    """Offsets of its run's other batches: shifted by as many, an outermost range is as good."""
    same = of_the_same_run(row, history)
    return sum(r.offsets.count for r in same if r is not row and r.parent is None)


def at_an_edge(row: Covered, history: Told) -> bool:
    """Whether its run begins or ends with it: without it, the history is a shorter valid one."""
    offsets = [each.offsets for each in of_the_same_run(row, history)]
    first, last = min(each.start for each in offsets), max(each.until for each in offsets)
    return row.offsets.start == first or row.offsets.until == last


# Findings


def test_a_gap_names_the_batches_around_it_and_losses_explain_what_they_cover() -> None:
    rows = [covered(0, 10), covered(30, 40)]
    result = proven(rows)
    (gap,) = result.findings
    assert (gap.kind, gap.offsets, gap.checkpoint_id) == (FindingKind.GAP, a_range(10, 30), "run")
    assert (gap.other, gap.batch_key) == ("batch of 0", "batch of 30")
    assert (result.verdict, result.spans[0].missing) == (Verdict.BROKEN, 20)

    losses = [Loss("orders", 1, a_range(15, 20)), Loss("orders", 2, a_range(18, 25))]
    result = proven(rows, losses)
    assert told(result) == [
        (FindingKind.GAP, 10, 15),
        (FindingKind.GAP, 25, 30),
        (FindingKind.LOST, 15, 25),
    ]
    assert (result.spans[0].missing, result.spans[0].lost) == (10, 10)

    result = proven(rows, [Loss("orders", 1, a_range(10, 30))])
    assert told(result) == [(FindingKind.LOST, 10, 30)]
    assert result.verdict is Verdict.PROVEN


def test_a_loss_of_another_partition_explains_nothing() -> None:
    elsewhere = Loss("orders", 1, a_range(10, 30, partition=1))
    result = proven([covered(0, 10), covered(30, 40)], [elsewhere])
    assert result.verdict is Verdict.BROKEN
    lost = result.findings[-1]
    assert (lost.kind, lost.offsets.partition, lost.checkpoint_id) == (FindingKind.LOST, 1, None)


def test_what_was_lost_before_and_behind_all_that_was_read_is_reported() -> None:
    losses = [Loss("orders", 1, a_range(0, 10)), Loss("orders", 2, a_range(20, 22))]
    result = proven([covered(10, 20)], losses)
    assert told(result) == [(FindingKind.LOST, 0, 10), (FindingKind.LOST, 20, 22)]
    assert (result.spans[0].lost, result.spans[0].offsets) == (0, a_range(10, 20))


def test_an_overlap_names_both_batches() -> None:
    result = proven([covered(0, 10), covered(5, 20)])
    (overlap,) = result.findings
    assert (overlap.kind, overlap.offsets) == (FindingKind.OVERLAP, a_range(5, 10))
    assert (overlap.batch_key, overlap.other) == ("batch of 5", "batch of 0")


def test_children_that_read_twice_or_beyond_their_batch_or_belong_to_none_are_found() -> None:
    whole = covered(0, 10, "whole", has_children=True)
    twice = [covered(0, 6, "a", parent="whole"), covered(4, 10, "b", parent="whole")]
    beyond = [covered(0, 6, "a", parent="whole"), covered(6, 12, "b", parent="whole")]
    (found,) = proven([whole, *twice]).findings
    assert (found.offsets, found.batch_key, found.other) == (a_range(4, 6), "whole", "b")
    (found,) = proven([whole, *beyond]).findings
    assert (found.offsets, found.batch_key, found.other) == (a_range(10, 12), "whole", "b")
    (found,) = proven([covered(0, 6, "a", parent="nobody")]).findings
    assert (found.offsets, found.batch_key, found.other) == (a_range(0, 6), "nobody", "a")
    assert found.kind is FindingKind.CHILDREN


def test_the_gap_between_two_checkpoints_is_found_and_is_no_defect() -> None:
    old, new = (
        covered(0, 10, checkpoint_id="z", created_ms=1),
        covered(30, 40, checkpoint_id="a", created_ms=9),
    )
    result = proven([old, new])
    (finding,) = result.findings
    assert (finding.kind, finding.offsets) == (FindingKind.SKIPPED, a_range(10, 30))
    assert (finding.checkpoint_id, finding.other) == ("a", "z")
    assert result.verdict is Verdict.SKIPPED
    assert [span.checkpoint_id for span in result.spans] == ["z", "a"]
    assert told(proven([old, new], [Loss("orders", 1, a_range(10, 30))])) == [
        (FindingKind.LOST, 10, 30)
    ]


def test_a_topic_that_was_recreated_is_a_topic_of_its_own() -> None:
    rows = [
        covered(0, 30, "old", topic_id="A"),
        covered(0, 10, "new", topic_id="B"),
        covered(15, 20, "newer", topic_id="B"),
        covered(5, 25, "other run", checkpoint_id="z", topic_id="A"),
    ]
    result = proven(rows)
    assert [(f.kind, f.offsets, f.topic_id) for f in result.findings] == [
        (FindingKind.GAP, a_range(10, 15), "B"),
        (FindingKind.READ_AGAIN, a_range(5, 25), "A"),
    ]
    assert {(s.checkpoint_id, s.topic_id): (s.processed, s.missing) for s in result.spans} == {
        ("run", "A"): (30, 0),
        ("run", "B"): (15, 5),
        ("z", "A"): (20, 0),
    }


def test_a_loss_of_a_topic_explains_nothing_of_one_that_was_recreated() -> None:
    rows = [
        covered(start, until, topic_id=topic_id)
        for topic_id in ("A", "B")
        for start, until in ((0, 10), (30, 40))
    ]
    loss = Loss("orders", 1, a_range(10, 30), "A")
    gap, lost = proven(rows, [loss]).findings
    assert (gap.kind, gap.topic_id, gap.offsets) == (FindingKind.GAP, "B", a_range(10, 30))
    assert (lost.kind, lost.topic_id, lost.offsets) == (FindingKind.LOST, "A", a_range(10, 30))
    behind = Loss("orders", 1, a_range(40, 50), "B")
    both = proven(rows, [loss, replace(loss, topic_id="B"), behind])
    assert both.verdict is Verdict.PROVEN
    assert [(f.topic_id, str(f.offsets)) for f in both.findings] == [
        ("A", "orders-0 [10, 30)"),
        ("B", "orders-0 [10, 30)"),
        ("B", "orders-0 [40, 50)"),
    ]


def test_runs_come_by_age_though_some_of_their_partitions_are_pruned() -> None:
    def row(checkpoint_id: str, partition: int, created_ms: int | None) -> Covered:
        offsets = a_range(0, 10, partition)
        return replace(
            covered(0, 10, checkpoint_id=checkpoint_id, created_ms=created_ms), offsets=offsets
        )

    rows = [row("b", 0, 5), row("a", 0, 7), row("a", 1, None), row("c", 0, None)]
    spans = proven(rows).spans
    assert [(s.checkpoint_id, s.offsets.partition) for s in spans] == [
        *(("c", 0), ("b", 0), ("a", 0), ("a", 1))
    ]


def test_what_two_checkpoints_read_is_found_and_is_no_defect() -> None:
    result = proven([covered(0, 10, checkpoint_id="a"), covered(4, 40, checkpoint_id="b")])
    assert told(result) == [(FindingKind.READ_AGAIN, 4, 10)]
    assert result.verdict is Verdict.PROVEN


def test_a_dead_batch_is_explained_by_its_error_and_only_by_that() -> None:
    rows = [covered(0, 10, status=Status.DEAD)]
    (finding,) = proven(rows).findings
    assert (finding.kind, finding.error) == (FindingKind.DEAD, TOLD_ERROR)
    without = prove(rows, lambda: (), lambda key: a_record(key, error=None))
    assert told(without) == [(FindingKind.UNEXPLAINED, 0, 10)]
    assert without.verdict is Verdict.BROKEN
    pruned_since = prove(rows, lambda: (), lambda _: None)
    assert pruned_since.verdict is Verdict.PROVEN


def test_what_a_batch_could_not_read_is_lost_and_not_processed() -> None:
    rows = [covered(0, 10, "a"), covered(10, 20, "b"), covered(20, 30, "c", status=Status.FAILED)]
    losses = [
        Loss(
            "orders",
            1,
            a_range(2, 6),
            batch_key="a",
            checkpoint_id="run",
            reason="it was deleted",
        ),
        Loss("orders", 1, a_range(4, 8), batch_key="a", checkpoint_id="run"),
        Loss("orders", 1, a_range(22, 24), batch_key="c", checkpoint_id="run"),
    ]
    result = proven(rows, losses)
    (span,) = result.spans
    assert (span.processed, span.lost, span.open) == (14, 6, 10)
    found = [f for f in result.findings if f.kind is FindingKind.LOST]
    assert [(f.offsets, f.batch_key, f.reason) for f in found] == [
        (a_range(2, 6), "a", "it was deleted"),
        (a_range(6, 8), "a", None),
    ]
    assert proven(rows[:2], losses[:2]).verdict is Verdict.PROVEN


def test_a_loss_of_a_batch_is_of_its_checkpoint_alone_and_of_its_children_where_it_was_split() -> (
    None
):
    rows = [
        covered(0, 10, "a", checkpoint_id="r"),
        covered(0, 10, "b", checkpoint_id="s"),
        covered(10, 20, "whole", checkpoint_id="s", has_children=True),
        covered(10, 15, "dead", checkpoint_id="s", parent="whole", status=Status.DEAD),
        covered(15, 20, "rest", checkpoint_id="s", parent="whole"),
    ]
    losses = [
        Loss("orders", 1, a_range(0, 4), batch_key="b", checkpoint_id="s"),
        Loss("orders", 1, a_range(10, 15), batch_key="whole", checkpoint_id="s", was_split=True),
    ]
    spans = {span.checkpoint_id: span for span in proven(rows, losses).spans}
    assert (spans["r"].processed, spans["r"].lost) == (10, 0)
    assert (spans["s"].processed, spans["s"].lost, spans["s"].dead) == (11, 4, 5)
    assert lost_records(losses) == 4


def test_a_batch_that_is_deleted_with_its_losses_is_a_gap() -> None:
    rows = [covered(0, 10), covered(20, 30)]
    loss = Loss("orders", 1, a_range(10, 20), batch_key="deleted")
    assert told(proven(rows, [loss])) == [(FindingKind.GAP, 10, 20)]


@given(valid_histories(), st.data())
def test_whatever_batches_lost_the_counts_add_up(history: Told, data: st.DataObject) -> None:
    done = [leaf for leaf in leaves(history) if leaf.status is Status.SUCCESS]
    assume(done)
    losses, expected = list(history.losses), 0
    for leaf in data.draw(st.lists(st.sampled_from(done), unique_by=lambda row: row.batch_key)):
        o = leaf.offsets
        start = data.draw(st.integers(o.start, o.until - 1))
        until = data.draw(st.integers(start + 1, o.until))
        expected += until - start
        missing = replace(o, start=start, until=until)
        loss = Loss(
            "orders", 1, missing, leaf.topic_id, leaf.batch_key, checkpoint_id=leaf.checkpoint_id
        )
        losses += [loss] * data.draw(st.integers(1, 2))
    before, after = proven(history.rows, history.losses), proven(history.rows, losses)
    for span in after.spans:
        counts = (span.processed, span.open, span.dead, span.lost, span.missing, span.pruned)
        assert sum(counts) == span.offsets.count
    assert after.verdict is before.verdict
    assert sum(s.lost for s in after.spans) == sum(s.lost for s in before.spans) + expected
    rest = pruned(history)
    keys = {row.batch_key for row in rest.rows}
    gone = [
        replace(loss, checkpoint_id=None) if loss.batch_key not in keys else loss for loss in losses
    ]
    assert sum(s.lost for s in proven(rest.rows, gone).spans) == sum(s.lost for s in after.spans)


def test_losses_are_asked_for_after_the_last_range() -> None:
    losses: list[Loss] = []

    def coverage() -> Iterable[Covered]:
        yield covered(0, 10)
        losses.append(Loss("orders", 1, a_range(10, 30)))
        yield covered(30, 40)

    assert prove(coverage(), lambda: losses, a_record).verdict is Verdict.PROVEN


def test_a_gate_that_has_read_nothing_is_proven() -> None:
    assert proven([]) == Verification((), ())


# In a ledger


def test_a_ledger_is_proven(ledger: Ledger, clock: ManualClock) -> None:
    begun = [ledger.batches.begin(batch_number(number)).batch_key for number in (0, 1, 2, 5)]
    first_ms = clock.now_ms
    ledger.history.record_losses("orders", [OffsetRange("orders", 0, 30, 50)])
    ledger.batches.succeed(begun[0])
    ledger.batches.fail(begun[1], ERROR)
    ledger.batches.attach(begun[2], 3, owner="me", lease_ms=1_000)
    ranges = [OffsetRange("orders", 0, 20, 21), OffsetRange("orders", 0, 21, 30)]
    bad, good = ledger.batches.split(begun[2], [a_batch(each) for each in ranges], "me", 1_000)
    letter = DeadLetter("orders", 0, 20, None, b"?", None, 1, 0, ERROR)
    ledger.dead_letters.add(bad.batch_key, letter)
    ledger.batches.succeed(good.batch_key)
    ledger.batches.succeed(begun[2])

    result = verify(ledger, "orders")
    assert told(result) == [
        (FindingKind.OPEN, 10, 20),
        (FindingKind.OPEN, 50, 60),
        (FindingKind.DEAD, 20, 21),
        (FindingKind.LOST, 30, 50),
    ]
    assert [f.error for f in result.findings] == [TOLD_ERROR, None, TOLD_ERROR, None]
    assert result.verdict is Verdict.OPEN
    whole = OffsetRange("orders", 0, 0, 60)
    assert result.spans == (
        Span("run", whole, first_ms, processed=19, open=20, dead=1, lost=20, missing=0),
    )


# Rejected records


@given(valid_histories(), st.data())
def test_what_was_rejected_is_not_processed_and_is_accounted_for(
    history: Told, data: st.DataObject
) -> None:
    done = [row for row in leaves(history) if row.status is Status.SUCCESS]
    chosen = data.draw(st.lists(st.sampled_from(done), unique=True)) if done else []
    rejected = [
        Rejected(row.checkpoint_id, row.batch_key or "", row.offsets, TOLD_ERROR, row.topic_id)
        for row in chosen
    ]
    plain = prove(history.rows, lambda: history.losses, a_record)
    result = prove(history.rows, lambda: history.losses, a_record, lambda: rejected)
    number = sum(each.offsets.count for each in rejected)
    for span, before in zip(result.spans, plain.spans, strict=True):
        assert span.processed + span.dead == before.processed + before.dead
        assert (span.open, span.lost, span.missing) == (before.open, before.lost, before.missing)
    assert sum(s.dead for s in result.spans) == sum(s.dead for s in plain.spans) + number
    assert result.verdict is plain.verdict
    found = [each for each in result.findings if each.kind is FindingKind.REJECTED]
    assert {each.offsets for each in found} == {each.offsets for each in rejected}
    assert all(each.error == TOLD_ERROR for each in found)


def test_what_is_rejected_of_a_batch_that_is_not_done_in_the_proof_is_not_counted_twice() -> None:
    rows = [covered(0, 10), covered(10, 20, status=Status.IN_PROGRESS)]
    late = [
        Rejected("run", "batch of 10", a_range(12, 13), TOLD_ERROR),
        Rejected("run", "batch of 20", a_range(20, 21), TOLD_ERROR),
        Rejected("another run", "batch of 0", a_range(3, 4), TOLD_ERROR),
    ]
    result = prove(in_order(rows), tuple, a_record, lambda: late)
    (span,) = result.spans
    assert (span.processed, span.open, span.dead) == (10, 10, 0)
    assert FindingKind.REJECTED not in {each.kind for each in result.findings}
