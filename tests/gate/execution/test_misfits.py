"""A schema that fits nothing ends the query, before anything becomes a dead letter."""

from typing import Any

import pytest

from headrace import Batch, retry
from headrace.decoding.decode_task import REPORTS
from headrace.errors import OptionError
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.ledger.records import DeadLetterRecord
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.moment import read_histories, take_snapshot
from headrace.operate.status.states import Need
from headrace.testing import Crash, MemoryLog, StreamHarness

REASON = "it lacks the field nosuch"


class Decoding:
    """Handler whose tasks report what begins with ``bad``, as those of a source that decodes."""

    def __init__(self, *, in_transaction: bool = False) -> None:
        self.in_transaction = in_transaction
        self.good: list[int] = []

    def __call__(self, df: Any, batch: Batch) -> None:
        rows, run = df.collect(), REPORTS.only
        bad = [row for row in rows if row.value is not None and bytes(row.value).startswith(b"bad")]
        REPORTS.add((run or "", row.topic, row.partition, row.offset, REASON) for row in bad)
        good = [row.offset for row in rows if row not in bad]
        if self.in_transaction:
            with batch.transaction():
                pass
        self.good += good


def letters(stream: StreamHarness) -> tuple[DeadLetterRecord, ...]:
    return stream.ledger.dead_letters.oldest("tested")


NEVER = (
    f"decodes with has fitted none of its gate's records yet: 3 of 3 in batch .* because {REASON};"
    " correct the schema or the producer"
)


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["stop", "defer", "isolate", retry(2, "1 ms")])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_schema_that_has_never_fitted_stops_the_query_until_it_is_corrected(
    policy: Last | OnFailure, *, in_transaction: bool
) -> None:
    handler = Decoding(in_transaction=in_transaction)
    with StreamHarness(handler, MemoryLog(*["bad hunter2"] * 3), on_failure=policy) as stream:
        for _start in range(2):
            with pytest.raises(OptionError, match=NEVER) as raised:
                stream.run()
            assert "hunter2" not in str(raised.value)
        (batch,) = stream.ledger.batches.newest()
        assert (batch.status, letters(stream)) == (Status.FAILED, ())
        stream.handler = lambda _df, _batch: None
        stream.run()
        assert set(stream.statuses().values()) == {Status.SUCCESS}
        assert letters(stream) == ()


def test_single_bad_records_stop_it_when_there_are_enough_of_them_in_all() -> None:
    log = MemoryLog("bad", Crash("after succeed"), "bad", "bad", "bad")
    with StreamHarness(Decoding(), log, options={"maxOffsetsPerTrigger": 1}) as stream:
        with pytest.raises(OptionError, match="1 of 1 in batch"):
            stream.run()
        assert [each.letter.offset for each in letters(stream)] == [0, 1]


@pytest.mark.parametrize("values", [["a", *["bad"] * 8], ["bad", "a", *["bad"] * 8]])
def test_a_schema_that_has_fitted_before_goes_on_after_a_restart(values: list[str]) -> None:
    with StreamHarness(
        Decoding(), MemoryLog(*values), on_failure="defer", options={"maxOffsetsPerTrigger": 3}
    ) as stream:
        stream.run_batch()
        stream.stop()
        stream.run()
        assert len(letters(stream)) == values.count("bad")


def test_what_the_handler_rejects_itself_is_no_evidence() -> None:
    def reject(df: Any, batch: Batch) -> None:
        batch.reject(df.collect(), "no order")

    with StreamHarness(reject, MemoryLog(*["an order"] * 3)) as stream:
        stream.run()
        stream.log.append(*["bad"] * 4)
        stream.handler = Decoding()
        stream.run()
        assert len(letters(stream)) == 7


def test_gaps_and_tombstones_are_not_taken_for_records_that_fit() -> None:
    log = MemoryLog("bad", "bad", "gap", None, "bad", "gap")
    log.compact(2)
    log.compact(5)
    with (
        StreamHarness(Decoding(), log) as stream,
        pytest.raises(OptionError, match="3 of 3 in batch"),
    ):
        stream.run()


def test_the_records_are_kept_where_the_option_says_so() -> None:
    log = MemoryLog(*["bad"] * 4)
    with StreamHarness(Decoding(), log, options={"failOnMisfit": "false"}) as stream:
        stream.run()
        assert len(letters(stream)) == 4


MOST = ["a", "bad", "bad", "bad", "bad"] * 4


def test_a_schema_that_stops_fitting_ends_a_query_that_is_to_stop() -> None:
    options = {"maxOffsetsPerTrigger": 5}
    with StreamHarness(Decoding(), MemoryLog(*MOST), options=options) as stream:
        for _start in range(2):
            with pytest.raises(OptionError, match="most records of 3 batches in a row: 4 of 5 in"):
                stream.run()
        assert len(letters(stream)) == 8


@pytest.mark.parametrize("policy", ["defer", "isolate"])
def test_any_other_query_goes_on_and_its_status_says_what_it_needs(policy: Last) -> None:
    options = {"maxOffsetsPerTrigger": 5}
    with StreamHarness(Decoding(), MemoryLog(*MOST), on_failure=policy, options=options) as stream:
        for _batch in range(2):
            stream.run_batch()
        assert misfits(stream) == []
        stream.run()
        assert len(letters(stream)) == 16
        (need,) = misfits(stream)
        assert need.sentence == (
            "The schema does not fit 12 records of the last 3 batches, more than half of each:"
            " correct the schema or the producer."
        )
        assert need.command == "headrace failures tested --error BadValue"
        stream.log.append("a", "a")
        stream.run()
        assert misfits(stream) == []


def misfits(stream: StreamHarness) -> list[Need]:
    (gate,) = stream.ledger.gates.all()
    (history,) = read_histories(stream.ledger, [gate])
    snapshot = take_snapshot(history, stream.clock())
    return [need for need in snapshot.needs if need.kind == "misfit"]
