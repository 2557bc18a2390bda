"""Any sequence of calls leaves in the ledger what it leaves in a few lists and dictionaries."""

import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from tests.gate.ledger.samples import a_sample, batch_number
from tests.services.examples import examples
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import OWNER_GONE, ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import (
    Attached,
    BatchRecord,
    Loss,
    PlannedBatch,
    RateSample,
)
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

GATES = ("orders", "clicks")

gates = st.sampled_from(GATES)
planned_batches = st.builds(batch_number, st.integers(0, 3), gate=gates)
times_ms = st.integers(-3, 3)
owners = st.sampled_from(["me", "other"])
LEASE_MS = 2
TO_BE_TAKEN = (Status.FAILED, Status.BACKFILLING)
messages = st.sampled_from(["no", "\x00", "größer"])


@cache
def ledger_with_gates() -> bytes:
    """A file to begin with; each example copies it, which is faster than to make it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with Ledger.open(f"sqlite:///{path}") as ledger:
            for gate in GATES:
                ledger.gates.declare(gate, interval_ms=1, source="kafka", estimator="pid")
        return path.read_bytes()


class Model:
    """The ledger as its documentation has it."""

    def __init__(self) -> None:
        self.batches: dict[str, BatchRecord] = {}
        self.rates: list[RateSample] = []
        self.in_force: dict[str, float] = {}
        self.losses: dict[str, dict[tuple[int, str | None], Loss]] = defaultdict(dict)
        self.begins: dict[str, list[str]] = defaultdict(list)
        self.runs: dict[str, int] = defaultdict(int)
        self.pruned: set[str] = set()

    def of(self, gate: str) -> tuple[BatchRecord, ...]:
        own = [batch for batch in self.batches.values() if batch.gate == gate]
        return tuple(sorted(own, key=lambda batch: -batch.created_time_ms))

    def rates_of(self, gate: str) -> tuple[RateSample, ...]:
        newest_first = [sample for sample in reversed(self.rates) if sample.gate == gate]
        return tuple(sorted(newest_first, key=lambda sample: -sample.time_ms))

    def begin(self, planned: PlannedBatch, now_ms: int) -> None:
        key = planned.batch_key
        self.begins[planned.gate].append(key)
        found = self.batches.get(key)
        if found is None:
            newest_ms = max((batch.created_time_ms for batch in self.of(planned.gate)), default=0)
            self.batches[key] = new_record(planned, max(now_ms, newest_ms + 1))
        elif found.status in {Status.IN_PROGRESS, Status.FAILED}:
            self.change(
                key,
                status=Status.IN_PROGRESS,
                attempts=found.attempts + 1,
                outcome_unknown=found.outcome_unknown or found.status is Status.IN_PROGRESS,
                start_time_ms=None,
                end_time_ms=None,
                records=None,
                error=None,
            )

    def is_(self, key: str, status: Status) -> bool:
        return key in self.batches and self.batches[key].status is status

    def keys(self, *statuses: Status) -> list[str]:
        return [key for key, batch in self.batches.items() if batch.status in statuses]

    def owner_of(self, key: str) -> str | None:
        return self.batches[key].owner if key in self.batches else None

    def is_free(self, key: str, status: Status, owner: str | None, now_ms: int) -> bool:
        """Whether it has this status, and is not another owner's."""
        if not self.is_(key, status):
            return False
        lease_until_ms = self.batches[key].lease_until_ms
        return self.owner_of(key) == owner or lease_until_ms is None or lease_until_ms <= now_ms

    def end(self, key: str, status: Status, now_ms: int, **values: Any) -> None:
        self.change(
            key, status=status, end_time_ms=now_ms, owner=None, lease_until_ms=None, **values
        )

    def cut(self, key: str, outcome_unknown: bool) -> None:
        self.change(key, outcome_unknown=self.batches[key].outcome_unknown or outcome_unknown)

    def change(self, key: str, **values: Any) -> None:
        self.batches[key] = replace(self.batches[key], **values)

    def prune(self, before_ms: int) -> tuple[int, int]:
        newest = {batches[0].batch_key for gate in GATES if (batches := self.of(gate))}
        old = [
            key
            for key, batch in self.batches.items()
            if batch.status is Status.SUCCESS
            and key not in newest
            # Begun anew after it was deleted, it has read the same twice.
            and key not in self.pruned
            # It ended before this time, and so it was created before, unless the clock was set.
            and max(batch.created_time_ms, batch.end_time_ms or 0) < before_ms
        ]
        for key in old:
            del self.batches[key]
        self.pruned.update(old)
        kept = [sample for sample in self.rates if sample.time_ms >= before_ms]
        pruned = len(old), len(self.rates) - len(kept)
        self.rates = kept
        return pruned


def new_record(planned: PlannedBatch, created_ms: int) -> BatchRecord:
    return BatchRecord(
        batch_key=planned.batch_key,
        gate=planned.gate,
        checkpoint_id=planned.checkpoint_id,
        status=Status.IN_PROGRESS,
        attempts=1,
        query_batch_id=None,
        created_time_ms=created_ms,
        start_time_ms=None,
        end_time_ms=None,
        reason=planned.reason,
        planned_records=10,
        lag=planned.lag,
        rate_per_s=planned.rate_per_s,
        records=None,
        error=None,
    )


class LedgerMachine(RuleBasedStateMachine):
    begun = Bundle("begun")

    @initialize(target=begun)
    def open(self) -> Any:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "ledger.db"
        path.write_bytes(ledger_with_gates())
        self.url = f"sqlite:///{path}"
        self.clock = ManualClock()
        self.ledger = Ledger.open(self.url, clock=self.clock, database_clock=self.clock)
        self.model = Model()
        # Without these, hardly any sequence would get as far as to the end of a backfill.
        planned = [batch_number(number) for number in range(3)]
        report = ErrorReport("ValueError", "no", "")
        for each in planned:
            self.ledger.batches.begin(each)
            self.model.begin(each, self.clock())
        for each in planned[:2]:
            self.ledger.batches.fail(each.batch_key, report)
            self.model.end(each.batch_key, Status.FAILED, self.clock(), error=report)
        return multiple(*planned)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    @rule()
    def open_again(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.url, clock=self.clock, database_clock=self.clock)

    @rule(by_ms=times_ms)
    def set_clock(self, by_ms: int) -> None:
        self.clock.now_ms += by_ms

    @rule(target=begun, planned=planned_batches, reason=st.sampled_from(["rate", "cap"]))
    def begin(self, planned: PlannedBatch, reason: str) -> PlannedBatch:
        answer = self.ledger.batches.begin(replace(planned, reason=reason))
        self.model.begin(replace(planned, reason=reason), self.clock())
        assert answer == self.model.batches[planned.batch_key]
        return planned

    @rule(planned=begun, number=st.integers(0, 9))
    def attach(self, planned: PlannedBatch, number: int) -> None:
        key = planned.batch_key
        moves = self.model.is_free(key, Status.IN_PROGRESS, None, self.clock())
        attached = self.ledger.batches.attach(key, number)
        if moves:
            self.model.change(
                key,
                query_batch_id=number,
                start_time_ms=self.clock(),
                owner=None,
                lease_until_ms=None,
            )
        self.check(attached, planned, moves)

    @rule(gate=gates)
    def count_a_run(self, gate: str) -> None:
        self.count(gate, self.ledger.gates.next_sequence(gate))

    def check(self, attached: Attached | None, planned: PlannedBatch, moves: bool) -> None:
        """Whether this is what the owner of a batch is told, and its number is a new one."""
        assert (attached is not None) == moves
        if attached is not None:
            assert attached.batch == self.model.batches[planned.batch_key]
            assert attached.ranges == planned.ranges
            self.count(planned.gate, attached.sequence)

    def count(self, gate: str, sequence: int) -> None:
        assert sequence == self.model.runs[gate] + 1
        self.model.runs[gate] = sequence

    @rule(planned=begun, records=st.none() | st.integers(0, 9))
    def succeed(self, planned: PlannedBatch, records: int | None) -> None:
        key = planned.batch_key
        moves = self.model.is_(key, Status.IN_PROGRESS)
        assert self.ledger.batches.succeed(key, records=records) == moves
        if moves:
            self.model.end(key, Status.SUCCESS, self.clock())
            if records is not None:
                self.model.change(key, records=records)

    @rule(planned=begun, message=messages, outcome_unknown=st.booleans())
    def fail(self, planned: PlannedBatch, message: str, outcome_unknown: bool) -> None:
        key = planned.batch_key
        report = ErrorReport("ValueError", message, message)
        moves = self.model.is_(key, Status.IN_PROGRESS)
        assert self.ledger.batches.fail(key, report, outcome_unknown=outcome_unknown) == moves
        if moves:
            self.model.end(key, Status.FAILED, self.clock(), error=report)
            self.model.cut(key, outcome_unknown)

    @rule(planned=begun, owner=owners, number=st.integers(0, 9))
    def attach_as_an_owner(self, planned: PlannedBatch, owner: str, number: int) -> None:
        key = planned.batch_key
        moves = self.model.is_free(key, Status.IN_PROGRESS, owner, self.clock())
        attached = self.ledger.batches.attach(key, number, owner=owner, lease_ms=LEASE_MS)
        if moves:
            self.model.change(
                key,
                query_batch_id=number,
                start_time_ms=self.clock(),
                owner=owner,
                lease_until_ms=self.clock() + LEASE_MS,
            )
        self.check(attached, planned, moves)

    @rule(planned=begun, owner=owners)
    def renew(self, planned: PlannedBatch, owner: str) -> None:
        key = planned.batch_key
        moves = self.model.owner_of(key) == owner
        assert self.ledger.batches.renew(key, owner, LEASE_MS) == moves
        if moves:
            self.model.change(key, lease_until_ms=self.clock() + LEASE_MS)

    @rule(gate=gates, but=st.none() | begun, before_ms=times_ms)
    def settle(self, gate: str, but: PlannedBatch | None, before_ms: int) -> None:
        spared = but.batch_key if but else None
        before_ms += self.clock()
        left = [
            batch.batch_key
            for batch in reversed(self.model.of(gate))
            if batch.status is Status.IN_PROGRESS
            and batch.batch_key != spared
            and (
                batch.created_time_ms < before_ms
                if batch.lease_until_ms is None
                else batch.lease_until_ms <= self.clock()
            )
        ]
        assert (
            self.ledger.batches.resolve_abandoned(gate, but=spared, unowned_before_ms=before_ms)
            == left
        )
        for key in left:
            self.model.end(key, Status.FAILED, self.clock(), error=OWNER_GONE)
            self.model.cut(key, True)

    @precondition(lambda self: self.model.keys(*TO_BE_TAKEN))
    @rule(data=st.data(), owner=owners)
    def take(self, data: st.DataObject, owner: str) -> None:
        key = data.draw(st.sampled_from(self.model.keys(*TO_BE_TAKEN)))
        found = self.model.batches[key]
        expired = self.model.is_free(key, Status.BACKFILLING, None, self.clock())
        taken = self.ledger.batches.claim(key, owner, LEASE_MS)
        if found.status is Status.FAILED or expired:
            self.model.change(
                key,
                status=Status.BACKFILLING,
                attempts=found.attempts + expired,
                backfills=found.backfills + expired,
                outcome_unknown=found.outcome_unknown or expired,
                start_time_ms=self.clock(),
                end_time_ms=None,
                records=None,
                owner=owner,
                lease_until_ms=self.clock() + LEASE_MS,
            )
            assert taken == self.model.batches[key]
        else:
            assert taken is None

    @precondition(lambda self: self.model.keys(Status.BACKFILLING))
    @rule(data=st.data(), owner=owners)
    def backfilled(self, data: st.DataObject, owner: str) -> None:
        key = data.draw(st.sampled_from(self.model.keys(Status.BACKFILLING)))
        moves = self.model.owner_of(key) == owner
        assert self.ledger.batches.backfilled(key, owner) == moves
        if moves:
            self.model.end(key, Status.SUCCESS, self.clock(), error=None)

    @precondition(lambda self: self.model.keys(Status.BACKFILLING))
    @rule(data=st.data(), owner=owners, is_dead=st.booleans(), outcome_unknown=st.booleans())
    def give_back(
        self, data: st.DataObject, owner: str, is_dead: bool, outcome_unknown: bool
    ) -> None:
        key = data.draw(st.sampled_from(self.model.keys(Status.BACKFILLING)))
        report = ErrorReport("ValueError", "no", "")
        moves = self.model.owner_of(key) == owner
        status = self.ledger.batches.release(
            key, owner, report, is_dead=is_dead, outcome_unknown=outcome_unknown
        )
        if moves:
            found = self.model.batches[key]
            expected = Status.DEAD if is_dead else Status.FAILED
            self.model.end(
                key,
                expected,
                self.clock(),
                error=report,
                attempts=found.attempts + 1,
                backfills=found.backfills + 1,
            )
            self.model.cut(key, outcome_unknown)
            assert status is expected
        else:
            assert status is None

    @precondition(lambda self: self.model.keys(Status.BACKFILLING))
    @rule(data=st.data(), owner=owners, message=messages)
    def bury(self, data: st.DataObject, owner: str, message: str) -> None:
        key = data.draw(st.sampled_from(self.model.keys(Status.BACKFILLING)))
        report = ErrorReport("ValueError", message, "")
        moves = self.model.owner_of(key) == owner
        assert self.ledger.batches.mark_dead(key, owner, report) == moves
        if moves:
            self.model.end(key, Status.DEAD, self.clock(), error=report)

    @rule(planned=begun, time_ms=times_ms, rate=st.none() | st.floats(1, 1e9))
    def publish_rate(self, planned: PlannedBatch, time_ms: int, rate: float | None) -> None:
        key, gate = planned.batch_key, planned.gate
        sample = a_sample(self.clock() + time_ms, rate, gate=gate, records=8, batch_key=key)
        report_sample(self.ledger, sample)
        if sample not in self.model.rates:
            self.model.rates.append(sample)
        if rate is not None:
            self.model.in_force[gate] = rate
        if key in self.model.batches:
            self.model.change(key, records=8)

    @rule(planned=begun, number=st.integers(0, 9), rate=st.none() | st.floats(1, 1e9))
    def report(self, planned: PlannedBatch, number: int, rate: float | None) -> None:
        key, gate, now_ms = planned.batch_key, planned.gate, self.clock()
        sample = a_sample(now_ms, rate, gate=gate, records=8, batch_key=key)
        self.ledger.rates.report(key, number, now_ms - 5, sample)
        if sample not in self.model.rates:
            self.model.rates.append(sample)
        if rate is not None:
            self.model.in_force[gate] = rate
        if key not in self.model.batches:
            return
        self.model.change(key, records=8)
        if self.model.is_free(key, Status.IN_PROGRESS, None, now_ms):
            self.model.change(key, query_batch_id=number, start_time_ms=now_ms - 5)
        if self.model.is_(key, Status.IN_PROGRESS):
            self.model.end(key, Status.SUCCESS, now_ms)

    @rule(
        gate=gates,
        start=st.integers(0, 2),
        count=st.integers(0, 3),
        topic_id=st.sampled_from([None, "A", "B"]),
    )
    def record_losses(self, gate: str, start: int, count: int, topic_id: str | None) -> None:
        offsets = OffsetRange("orders", 0, start, start + count)
        self.ledger.history.record_losses(gate, [offsets], {"orders": topic_id} if topic_id else {})
        if count:
            known = self.model.losses[gate]
            position = start, topic_id
            first = known.setdefault(position, Loss(gate, self.clock(), offsets, topic_id))
            if first.offsets.until < offsets.until:
                known[position] = replace(first, offsets=offsets)

    @precondition(lambda self: self.model.batches)
    @rule(time_ms=times_ms)
    def prune(self, time_ms: int) -> None:
        before_ms = self.clock() + time_ms
        assert self.ledger.history.prune(before_ms) == self.model.prune(before_ms)

    @rule(gate=gates)
    def look_at_a_gate(self, gate: str) -> None:
        batches = self.model.of(gate)
        assert self.ledger.rates.current(gate) == self.model.in_force.get(gate)
        begins = self.model.begins[gate]
        # History may have been pruned.
        last = self.model.batches.get(begins[-1]) if begins else None
        assert self.ledger.gates.last_begun(gate) == ((len(begins), last) if last else None)
        assert self.ledger.batches.open_batch(gate) == next(
            (batch for batch in batches if batch.status is Status.IN_PROGRESS), None
        )

    @rule(planned=begun)
    def look_at_a_batch(self, planned: PlannedBatch) -> None:
        key = planned.batch_key
        assert self.ledger.batches.get(key) == self.model.batches.get(key)
        assert self.ledger.batches.ranges(key) == (
            planned.ranges if key in self.model.batches else ()
        )

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        for gate in GATES:
            assert self.ledger.batches.newest(gate) == self.model.of(gate)
            assert self.ledger.rates.history(gate) == self.model.rates_of(gate)
            assert self.ledger.batches.failed(gate) == tuple(
                batch
                for batch in reversed(self.model.of(gate))
                if batch.status is Status.FAILED
                or self.model.is_free(batch.batch_key, Status.BACKFILLING, None, self.clock())
            )
            lost = self.model.losses[gate].values()
            in_order = sorted(
                lost, key=lambda loss: (loss.time_ms, loss.topic_id or "", loss.offsets)
            )
            assert self.ledger.history.losses(gate) == tuple(in_order)


LedgerMachine.TestCase.settings = examples(10, stateful_step_count=50)
TestAnySequenceOfCalls = LedgerMachine.TestCase
