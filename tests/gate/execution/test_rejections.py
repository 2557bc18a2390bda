"""Records that a handler rejects by name: dead letters of the same run, durable with its success,
or not at all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.services.examples import examples

from headrace import Batch, retry
from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError, RejectionError, SetupError
from headrace.gate.execution import rejections
from headrace.gate.execution.policy import Last, OnFailure, isolate
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.proof import FindingKind, Verdict
from headrace.gate.ledger.records import DeadLetterRecord, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.testing import Crash, MemoryLog, MemoryReader, Record, StreamHarness

GATE = "tested"
BAD = Record(b"bad", b"k", (("trace", b"1"), ("none", None)), timestamp_ms=86_400_000)

SPLITS = retry(2, "1 ms", then="isolate")

Handle = Callable[[Any, Batch], None]


class Sink:
    """Keeps what is good, and rejects what begins with ``bad``.

    Attributes:
        fails: how many more calls raise, after they have rejected.
        in_transaction: whether the rows are in the ledger's database.
    """

    def __init__(self, fails: int = 0, *, in_transaction: bool = False) -> None:
        self.fails = fails
        self.in_transaction = in_transaction
        self.good: list[bytes] = []

    def __call__(self, df: Any, batch: Batch) -> None:
        rows = df.collect()
        batch.reject([row for row in rows if _is_bad(row)], "it is bad")
        good = [row.value for row in rows if not _is_bad(row)]
        if self.in_transaction:
            with batch.transaction() as connection:
                self._fail()
                connection.execute(text("SELECT 1"))
        self._fail()
        self.good += good

    def _fail(self) -> None:
        self.fails -= 1
        if self.fails >= 0:
            raise ValueError("the sink is full")


def _is_bad(row: Any) -> bool:
    return bytes(row.value).startswith(b"bad")


def letters(stream: StreamHarness) -> list[DeadLetterRecord]:
    return list(stream.ledger.dead_letters.oldest())


def offsets(stream: StreamHarness) -> list[int]:
    return [each.letter.offset for each in letters(stream)]


def counts(stream: StreamHarness) -> tuple[int, int, int]:
    """Processed, dead and open by the proof, which is whole."""
    verification = stream.ledger.proofs.verify(GATE)
    assert verification.verdict is not Verdict.BROKEN
    for span in verification.spans:
        assert span.processed + span.dead + span.open == span.offsets.count
    return (
        sum(span.processed for span in verification.spans),
        sum(span.dead for span in verification.spans),
        sum(span.open for span in verification.spans),
    )


def test_a_rejected_record_is_a_dead_letter_of_a_batch_that_is_a_success() -> None:
    sink = Sink()
    with StreamHarness(sink, MemoryLog("a", BAD, "c")) as stream:
        stream.run()
        (kept,) = letters(stream)
        (batch,) = stream.ledger.batches.newest()
        assert (batch.status, batch.error) == (Status.SUCCESS, None)
        assert kept.batch_key == batch.batch_key
        letter = kept.letter
        assert (letter.key, letter.value, letter.headers) == (b"k", b"bad", BAD.headers)
        assert (letter.offset, letter.timestamp_ms) == (1, 86_400_000)
        assert letter.error == ErrorReport("Rejected", "it is bad", "")
        assert sink.good == [b"a", b"c"]
        assert counts(stream) == (2, 1, 0)


def test_the_proof_names_what_was_rejected_range_by_range() -> None:
    log = MemoryLog("a", "bad", "bad", "d", "bad")
    with StreamHarness(Sink(), log) as stream:
        stream.run()
        (batch,) = stream.ledger.batches.newest()
        found = stream.ledger.proofs.verify(GATE)
        assert found.verdict is Verdict.PROVEN
        assert [(each.kind, each.offsets.start, each.offsets.until) for each in found.findings] == [
            (FindingKind.REJECTED, 1, 3),
            (FindingKind.REJECTED, 4, 5),
        ]
        assert {each.batch_key for each in found.findings} == {batch.batch_key}
        assert {each.error and each.error.message for each in found.findings} == {"it is bad"}
        assert stream.ledger.dead_letters.count_rejected([batch.batch_key]) == {batch.batch_key: 3}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_a_run_rejected_that_failed_is_forgotten(in_transaction: bool) -> None:
    sink = Sink(fails=1, in_transaction=in_transaction)
    with StreamHarness(sink, MemoryLog("a", "bad")) as stream:
        with pytest.raises(ValueError, match="the sink is full"):
            stream.run()
        assert letters(stream) == []
        assert counts(stream) == (0, 0, 2)
        sink.fails = 0
        stream.run()
        assert (offsets(stream), counts(stream)) == ([1], (1, 1, 0))


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["stop", "defer", "isolate", retry(2, "1 ms")])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_each_policy_keeps_what_was_rejected_once(policy: Any, in_transaction: bool) -> None:
    sink = Sink(in_transaction=in_transaction)
    log = MemoryLog(*["a", "bad", "c"] * 3)
    with StreamHarness(sink, log, on_failure=policy, options={"maxOffsetsPerTrigger": 2}) as stream:
        stream.run()
        assert offsets(stream) == [1, 4, 7]
        assert counts(stream) == (6, 3, 0)
    assert sink.good == [b"a", b"c"] * 3


def test_a_retry_rejects_anew() -> None:
    sink = Sink(fails=2)
    with StreamHarness(sink, MemoryLog("bad", "b"), on_failure=retry(3, "1 ms")) as stream:
        stream.run()
        assert (offsets(stream), counts(stream)) == ([0], (1, 1, 0))


def test_a_backfill_rejects_what_the_live_batch_could_not() -> None:
    sink = Sink(fails=1)
    with StreamHarness(sink, MemoryLog("a", "bad", "c"), on_failure="defer") as stream:
        stream.run()
        assert letters(stream) == []
        stream.backfill()
        assert (offsets(stream), counts(stream)) == ([1], (2, 1, 0))


@pytest.mark.integration
def test_a_child_of_an_isolation_rejects_its_own_records() -> None:
    poisoned = {b"poison"}

    def handle(df: Any, batch: Batch) -> None:
        rows = df.collect()
        batch.reject([row for row in rows if _is_bad(row)], "it is bad")
        if any(bytes(row.value) in poisoned for row in rows):
            raise ValueError("poisoned")

    log = MemoryLog("a", "bad", "c", "poison", "bad", "f", "g", "bad")
    with StreamHarness(handle, log, on_failure="isolate") as stream:
        stream.run()
        stream.backfill()
        by_offset = {each.letter.offset: each.letter.error.error_class for each in letters(stream)}
        assert by_offset == {1: "Rejected", 3: "ValueError", 4: "Rejected", 7: "Rejected"}
        assert counts(stream) == (4, 4, 0)
        assert stream.ledger.proofs.verify(GATE).verdict is Verdict.PROVEN


@pytest.mark.integration
@pytest.mark.parametrize(
    "rows",
    [
        lambda rows: rows,
        lambda rows: (row for row in rows),
        lambda rows: [row.asDict() for row in rows],
        lambda rows: [(row.topic, row.partition, row.offset) for row in rows],
        lambda rows: [[row.topic, row.partition, row.offset] for row in rows] * 2,
    ],
)
def test_rows_are_named_in_any_of_these_forms(rows: Callable[[Any], Any]) -> None:
    def handle(df: Any, batch: Batch) -> None:
        batch.reject(rows(df.collect()[:2]), "no")
        batch.reject([("records", 0, 0)], "the second reason does not count")

    with StreamHarness(handle, MemoryLog("a", "b", "c")) as stream:
        stream.run()
        assert [each.letter.error.message for each in letters(stream)] == ["no", "no"]


NOT_OF_THE_BATCH = "not of batch .* reject rows of the batch itself, which has records-0 \\[0, 2\\)"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("rows", "reason", "sentence"),
    [
        ([("records", 0, 0), ("records", 0, 2)], "no", NOT_OF_THE_BATCH),
        ([("records", 1, 0)], "no", NOT_OF_THE_BATCH),
        ([("orders", 0, 0)], "no", NOT_OF_THE_BATCH),
        ([("records", 0, -1)], "no", NOT_OF_THE_BATCH),
        ([{"topic": "records", "partition": 0}], "no", "has no 'offset'; keep topic, partition"),
        ([("records", "0", 0)], "no", r"of the types \(str, str, int\); give a topic"),
        ([("records", 0, True)], "no", r"of the types \(str, int, bool\); give a topic"),
        ([17], "no", r"of the types \(int\); give a topic"),
        ("records", "no", "are a str; give a DataFrame, or a list of rows"),
        (17, "no", "are a int; give a DataFrame, or a list of rows"),
        ([("records", 0, 0)], " ", "The reason to reject rows is ' '; give a sentence"),
        ([("records", 0, 0)], None, "The reason to reject rows is None; give a sentence"),
    ],
)
def test_what_cannot_be_rejected_is_refused_in_one_sentence_and_nothing_is_kept(
    rows: Any, reason: Any, sentence: str
) -> None:
    def handle(_df: Any, batch: Batch) -> None:
        batch.reject(rows, reason)

    with StreamHarness(handle, MemoryLog("a", "b")) as stream:
        with pytest.raises(RejectionError, match=sentence) as raised:
            stream.run()
        assert "\n" not in str(raised.value)
        assert letters(stream) == []
        assert set(stream.statuses().values()) == {Status.FAILED}


def test_a_refusal_that_is_caught_leaves_what_was_rejected_before_and_the_batch_goes_on() -> None:
    def handle(_df: Any, batch: Batch) -> None:
        batch.reject([("records", 0, 0)], "no")
        with pytest.raises(OptionError):
            batch.reject([("records", 0, 1), ("records", 0, 9)], "no")

    with StreamHarness(handle, MemoryLog("a", "b")) as stream:
        stream.run()
        assert offsets(stream) == [0]


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["defer", "isolate"])
def test_rows_of_another_batch_make_no_dead_letter_of_a_good_record(policy: Last) -> None:
    def handle(_df: Any, batch: Batch) -> None:
        batch.reject([("records", 0, 3)], "no")

    with StreamHarness(handle, MemoryLog("a", "b", "c"), on_failure=policy) as stream:
        stream.run()
        assert (letters(stream), counts(stream)) == ([], (0, 0, 3))
        (batch,) = stream.ledger.batches.newest()
        assert batch.error is not None
        assert batch.error.error_class == "headrace.errors.RejectionError"


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["stop", "defer", "isolate", retry(2, "1 ms"), SPLITS])
@pytest.mark.parametrize("kind", [OptionError, SetupError])
def test_a_wrong_schema_or_option_stops_the_query_whatever_the_policy(
    policy: Last | OnFailure, kind: type[Exception]
) -> None:
    runs: list[str] = []

    def handle(_df: Any, batch: Batch) -> None:
        runs.append(batch.key)
        raise kind("The JSON schema's field t is of timestamp_ntz; use TIMESTAMP_LTZ.")

    with StreamHarness(handle, MemoryLog("a", "b", "c"), on_failure=policy) as stream:
        with pytest.raises(kind, match="use TIMESTAMP_LTZ"):
            stream.run()
        assert (len(runs), letters(stream), counts(stream)) == (1, [], (0, 0, 3))
        (batch,) = stream.ledger.batches.newest()
        assert (batch.status, batch.attempts) == (Status.FAILED, 1)
        assert batch.error is not None
        assert batch.error.error_class == f"headrace.errors.{kind.__name__}"
        stream.handler = lambda _df, _batch: None
        stream.run()
        assert counts(stream) == (3, 0, 0)


def test_more_than_a_batch_may_reject_are_rejected_by_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rejections, "MAX_REJECTED", 3)
    log = MemoryLog(*["bad", "good"] * 6)
    with StreamHarness(Sink(), log, on_failure="isolate") as stream:
        stream.run()
        assert sorted(offsets(stream)) == list(range(0, 12, 2))
        assert counts(stream) == (6, 6, 0)


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "MAX_REJECTED", 3)
    with StreamHarness(Sink(), MemoryLog(*["bad"] * 4)) as stream:
        with pytest.raises(OptionError, match=r"More than 3 records of batch .* 'it is bad'"):
            stream.run()
        assert letters(stream) == []


def test_too_large_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "MAX_REJECTED_BYTES", 1 << 20)
    with StreamHarness(Sink(), MemoryLog(*["bad" + "x" * (1 << 19)] * 2)) as stream:
        with pytest.raises(OptionError, match="more than 1 MiB; raise an exception instead"):
            stream.run()
        assert letters(stream) == []


def test_an_offset_without_a_record_is_refused() -> None:
    log = MemoryLog("a", "b", "c")
    log.compact(1)

    def handle(_df: Any, batch: Batch) -> None:
        batch.reject([("records", 0, 1)], "no")

    with StreamHarness(handle, log) as stream:
        with pytest.raises(OptionError, match=r"records-0 at 1, .* is no record of the source"):
            stream.run()
        assert letters(stream) == []


def test_nothing_is_rejected_after_the_commit() -> None:
    def handle(_df: Any, batch: Batch) -> None:
        with batch.transaction():
            batch.reject([("records", 0, 0)], "within")
        batch.reject([("records", 0, 1)], "behind")

    with StreamHarness(handle, MemoryLog("a", "b")) as stream:
        with pytest.raises(LedgerError, match="is committed, or its handler has returned"):
            stream.run()
        assert offsets(stream) == [0]
        assert list(stream.statuses().values()) == [Status.DEAD, Status.SUCCESS]


def test_nothing_is_rejected_when_the_handler_has_returned() -> None:
    batches: list[Batch] = []
    with StreamHarness(lambda _df, batch: batches.append(batch), MemoryLog("a")) as stream:
        stream.run()
        with pytest.raises(LedgerError, match="or its handler has returned"):
            batches[0].reject([("records", 0, 0)], "no")
        with pytest.raises(LedgerError, match="was made without a ledger"):
            Batch("key", 0, (), 1, "live", 1).reject([], "no")


def test_a_batch_with_letters_that_wait_is_not_pruned() -> None:
    log = MemoryLog("a", "bad", "c")
    with StreamHarness(Sink(), log, options={"maxOffsetsPerTrigger": 2}) as stream:
        stream.run()
        later_ms = stream.clock() + 1_000_000
        assert stream.ledger.history.prune(later_ms)[0] == 0
        (letter,) = letters(stream)
        stream.ledger.dead_letters.resolve(letter.dead_letter_id, letter.status.DROPPED, "known")
        assert stream.ledger.history.prune(later_ms)[0] == 1
        assert letters(stream) == []
        assert stream.ledger.proofs.verify(GATE).verdict is Verdict.PROVEN


STEPS = ["attach", "handle", "commit", "succeed", "claim", "backfilled", "keep_progress", "fail"]
VALUES = st.lists(st.sampled_from(["a", "bad"]), min_size=1, max_size=12)
CRASHES = st.lists(
    st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(STEPS), st.integers(0, 11)),
    max_size=3,
)


@pytest.mark.integration
@given(values=VALUES, crashes=CRASHES, in_transaction=st.booleans())
@examples(60)
def test_whatever_crashes_each_bad_record_is_one_letter_and_each_good_one_is_processed(
    values: Sequence[str], crashes: Sequence[tuple[str, str, int]], in_transaction: bool
) -> None:
    def handle(df: Any, batch: Batch) -> None:
        rows = df.collect()
        batch.reject([row for row in rows if _is_bad(row)], "it is bad")
        if in_transaction:
            with batch.transaction():
                pass

    log = MemoryLog(*_with_crashes(values, crashes))
    with StreamHarness(
        handle, log, on_failure=isolate(), options={"maxOffsetsPerTrigger": 5}
    ) as stream:
        stream.run()
        stream.backfill()
        found = offsets(stream)
        assert sorted(found) == [at for at, value in enumerate(values) if value == "bad"]
        assert counts(stream) == (values.count("a"), len(found), 0)
        assert stream.ledger.proofs.verify(GATE).verdict is Verdict.PROVEN


def _with_crashes(
    values: Sequence[str], crashes: Sequence[tuple[str, str, int]]
) -> Iterator[str | Crash]:
    for at, value in enumerate(values):
        yield value
        for when, step, behind in crashes:
            if behind % len(values) == at:
                yield Crash(f"{when} {step}")


def test_a_reader_is_asked_once_for_all_that_a_run_rejects() -> None:
    log = MemoryLog(*["bad"] * 5)
    asked: list[int] = []

    class Reader(MemoryReader):
        def rejected(
            self, ranges: Sequence[PlannedRange], reasons: Any, on_loss: Any = None
        ) -> Any:
            asked.append(len(reasons))
            return super().rejected(ranges, reasons, on_loss)

    ranges = (OffsetRange("records", 0, 0, 5),)
    found = rejections.Rejections(
        "key", ranges, Reader(log), lambda: [PlannedRange(each) for each in ranges]
    )
    for offset in range(5):
        found.add([("records", 0, offset)], "no")
    assert [letter.offset for letter in found.read()] == list(range(5))
    assert len(found.read()) == 5
    assert asked == [5]
