"""Planner of a stream: it decides the ranges that each batch reads.

The planner runs in a process of its own on the driver, for as long as the query runs. The planner
reads only through a `Log`, which Kafka and journals both are. So offsets, batch keys, ledger,
failure policies, backfill and `verify` are the same code for Kafka and journals.

The planner applies an ``auto`` interval itself, because Spark fixes a trigger's interval when a
query starts. The trigger of such a gate fires every 50 ms. Until the interval in the ledger has
passed, the planner reports no new records, without asking the log.

The first plan of a gate makes a batch even without records, and even if the gate is paused: the
batch records where the stream begins. When Spark repeats batch 0 after a crash, it calls
``initialOffset`` again. With ``startingOffsets=latest`` the new result is higher. Without the
recorded start, the records between the two results would be lost.
"""

import logging
import math
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, merge, nested
from headrace.core.timing import Clock
from headrace.errors import BrokerError, DataLossError, OptionError
from headrace.gate.control.plan import Plan, empty_plan, plan, should_wait
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedRange
from headrace.gate.source.gate_ledger import GateIdentity, GateLedger, OpenLedger
from headrace.gate.source.log import CheckedLog, Log, Topic, declared_lost, gone
from headrace.gate.source.losses import LossAccount, MissingOffsets, describe_losses
from headrace.gate.source.read_bounds import (
    AtOffsets,
    StartOffsets,
    resolve_start_offsets,
    starting_positions,
    topic_ids_of,
)
from headrace.gate.source.replay import next_replay
from headrace.gate.source.resumption import (
    GateMemory,
    continued,
    going_on,
    interrupted_end,
    refusal,
    refuse_an_older_checkpoint,
    refuse_another_ledger,
    unknown_ranges,
)
from headrace.gate.source.source_options import NEW_CHECKPOINT, NewCheckpoint, SourceOptions
from headrace.gate.source.stream_offset import Checksums, ChecksumsBefore, StreamOffset

_LOG: Final = logging.getLogger("headrace.source")

_ABANDONED_LOOK_S: Final = 5.0
"""Minimum time between two searches for batches in progress whose owner has ended (s)."""

_LAST_OFFSET: Final = 2**63 - 1

_READ_AGAIN: Final = "a restart of the gate reads it again (headrace)"

_IDLE_PART: Final = 0.25
"""Fraction of an ``auto`` interval after which a log without new records is asked again."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """Plan of the newest batch, kept until Spark requests the batch's tasks."""

    end: dict[str, Any]
    plan: Plan
    latest: Mapping[TopicPartition, int]
    losses: Sequence[MissingOffsets]
    """Offsets within the batch that are gone from the log."""


@dataclass(frozen=True, slots=True)
class ToRead:
    """Ranges of a begun batch, and the instructions for the tasks that read them.

    Attributes:
        aborted: Names of aborted stage attempts, whose records the tasks skip.
        after: Checksums of the records before the batch's start; see `CheckedLog.checksums`.
        fail_on_loss: Whether a missing offset fails the task.
        account: Account to which the tasks write losses; None without a ledger, or in a replay of
            the batch.
    """

    ranges: Sequence[OffsetRange]
    aborted: tuple[str, ...]
    topic_ids: Mapping[str, str]
    after: ChecksumsBefore
    fail_on_loss: bool
    account: LossAccount | None


class StreamPlanner:
    """Planner of the batches of one source in one query.

    Every method raises ``BrokerError`` or ``JournalError`` for an unreachable log, and
    ``LedgerError`` for an unreachable ledger. In both cases the batch does not start.
    """

    def __init__(
        self,
        log: Log,
        options: SourceOptions,
        clock: Clock = time,
        *,
        driver: str | None = None,
        open_ledger: OpenLedger = Ledger.open,
    ) -> None:
        self.log: Final = log
        self._checked = log if isinstance(log, CheckedLog) else None
        self._options = options
        self._clock = clock
        self._gate_ledger = _open_gate_ledger(log, options, clock, driver, open_ledger)
        self._interval_ms = options.interval_ms
        self._target: Mapping[TopicPartition, int] | None = None
        self._latest: Mapping[TopicPartition, int] = {}
        self._planned: _Planned | None = None
        self._next_s = -math.inf
        """Time from which the log is asked again, with an ``auto`` interval (s, monotonic
        clock)."""
        self._last_let_through = -math.inf
        self._next_abandoned_s = -math.inf
        """Time of the next search for abandoned batches (s, monotonic clock)."""
        self._goes_on = False
        """Whether the query has a new checkpoint, and continues from the ledger's position."""
        self._is_compared = False
        """Whether this process has compared the checkpoint with the ledger."""

    def initial(self) -> dict[str, Any]:
        """Return the offset at which a new checkpoint begins, from ``startingOffsets``."""
        options = self._options
        topics = self.log.topics(must_exist=True)
        positions = self._within(
            starting_positions(
                self.log,
                options.starting,
                options.timestamp_strategy,
                self.log.partitions(topics),
            )
        )
        return StreamOffset(
            positions=positions,
            gate=options.gate,
            checkpoint_id=uuid.uuid4().hex,
            topic_ids=topic_ids_of(topics),
            after=self._checksums(positions),
            first=True,
        ).to_json()

    def _within(self, positions: Positions) -> Positions:
        """Return start positions, limited to the log's end. A start beyond the end is no loss."""
        starting = self._options.starting
        if not isinstance(starting.at, AtOffsets):
            return positions
        ends = self.log.bounds(positions)[1]
        beyond = {tp: offset for tp, offset in positions.items() if offset > ends[tp]}
        for tp, offset in beyond.items():
            sentence = f"{starting.option} is {offset} for {tp}, beyond its end at {ends[tp]}"
            if self._options.fail_on_data_loss or self._checked is not None:
                raise OptionError(f"{sentence}; set an offset within the log, or -1 for the end.")
            _LOG.warning("%s; the partition is read from its end.", sentence)
        return {**positions, **{tp: ends[tp] for tp in beyond}}

    def stop_at_latest(self) -> None:
        """Limit this run to the records that exist now, for ``Trigger.AvailableNow``."""
        partitions = self.log.partitions(self.log.topics())
        self._target = self.log.bounds(partitions)[1]

    def latest(self) -> dict[str, dict[str, int]] | None:
        """Return the log's end offsets as of the newest plan; None before the first plan."""
        return nested(self._latest) or None

    def advance(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """Plan the next batch. Return its end, or ``start`` itself if no batch is to run.

        Args:
            start: End of the last batch. Spark requests the next batch only after processing the
                last one.
            everything: Whether the trigger (``once``) reads all records, regardless of the limits.

        Raises:
            DataLossError: Offsets are gone and ``failOnDataLoss`` is set. Or a journal's lane ends
                before the offsets that were read, or its earlier records were replaced.
            GateInUseError: Another query owns the gate.
            OptionError: The checkpoint belongs to another gate, or is an older copy.
        """
        previous_end = offset = StreamOffset.from_json(start)
        offset.refuse_another_gate(self._options.gate)
        if offset.replay:
            return next_replay(offset) or start
        # Claim the gate after this check: a query that replays batches plans none, and has no gate.
        if self._gate_ledger is not None:
            self._gate_ledger.claim()
        if self._is_early() and not everything:
            return start
        began_s = self._clock.monotonic()
        if not offset.first:
            self.log.processed(offset.positions)
        topics, earliest, latest = self._look()
        offset, interrupted = self._resume(offset, topics, earliest, latest)
        if interrupted is not None:
            return interrupted.to_json()
        self._fail_abandoned()
        starts = resolve_start_offsets(
            offset,
            topics,
            earliest,
            latest,
            seen=self._seen(offset, topics),
            cut=self._checked.cut if self._checked is not None else None,
        )
        checksums = offset.after_of(starts.topic_ids)
        if self._checked is not None:
            self._checked.check_continues(checksums)
        self._latest = latest
        self._account_for(starts.losses, starts.topic_ids)
        self._withdraw_losses(starts)
        planned = self._plan(starts, self._admissible(starts, latest), everything=everything)
        lost = [
            MissingOffsets(missing, "it was declared lost")
            for missing in declared_lost(self.log, _ranges_between(starts.current, planned.until))
        ]
        self._refuse_or_log(lost)
        # An empty first batch records where a gate begins; the ledger knows a continued position.
        is_known = self._goes_on if offset.first else offset.positions == previous_end.positions
        if planned.records == 0 and is_known and not starts.losses and not starts.returned:
            self._next_s = self._clock.monotonic() + _IDLE_PART * self._interval_ms / 1000
            return start
        after = self._after(checksums, planned.until)
        end = self._end(previous_end, offset, starts, planned.until, after).to_json()
        self._planned = _Planned(end, planned, latest, lost)
        self._next_s = began_s + self._interval_ms / 1000
        return end

    def _end(
        self,
        asked: StreamOffset,
        offset: StreamOffset,
        starts: StartOffsets,
        until: Positions,
        after: Checksums,
    ) -> StreamOffset:
        """Return the end of the next batch. ``asked`` is the previous batch's end, from Spark."""
        # A query may have received its gate after its checkpoint was created.
        begun = replace(
            offset,
            gate=self._options.gate,
            gate_id=self._gate_ledger.gate_id if self._gate_ledger is not None else "",
            checkpoint_id=offset.checkpoint_id or uuid.uuid4().hex,
        )
        # Spark knows the end of the previous batch, but not the ledger's position.
        elsewhere = {tp: at for tp, at in starts.current.items() if at != asked.positions.get(tp)}
        begins = {**starts.begins, **elsewhere}
        if not offset.checkpoint_id:  # The native source's offset, which no ledger knows.
            begins = starts.current
        return begun.moved(until, begins, starts.topic_ids, after, starts.out_of_sight)

    def _is_early(self) -> bool:
        """Return whether the ``auto`` interval since the last plan has not passed yet."""
        is_paced = self._options.estimator.auto is not None and self._target is None
        return is_paced and self._clock.monotonic() < self._next_s

    def _after(self, known: ChecksumsBefore, until: Positions) -> Checksums:
        """Return the checksums at a batch's end, by partition.

        A partition without new records keeps its checksum.
        """
        kept = {tp: known[tp, end] for tp, end in until.items() if (tp, end) in known}
        return {**self._checksums({tp: e for tp, e in until.items() if tp not in kept}), **kept}

    def _checksums(self, positions: Positions) -> Checksums:
        return self._checked.checksums(positions) if self._checked is not None else {}

    def _look(self) -> tuple[Mapping[str, Topic], Positions, Positions]:
        """Return the topics, and the first offset and end offset of each partition."""
        topics = self.log.topics()
        while True:
            try:
                return topics, *self.log.bounds(self.log.partitions(topics))
            except BrokerError:
                # Brokers refuse the whole request if a topic was deleted after the last request.
                newer = self.log.topics()
                if newer == topics:
                    raise
                topics = newer

    def _admissible(
        self, starts: StartOffsets, latest: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return the offset up to which this run may read in each partition."""
        readable = self.log.readable_until(latest)
        ends = {tp: max(end, starts.current[tp]) for tp, end in readable.items()}
        if self._target is None:
            return ends
        return {tp: min(end, self._target.get(tp, starts.current[tp])) for tp, end in ends.items()}

    def _plan(
        self, starts: StartOffsets, latest: Mapping[TopicPartition, int], *, everything: bool
    ) -> Plan:
        options = self._options
        gate_ledger = self._gate_ledger
        now = None if gate_ledger is None else gate_ledger.admission()
        operator = None if now is None else now.operator
        if everything or (operator is not None and operator.closed_by is not None):
            held = None if operator is None else replace(operator, limit=None)
            return plan(starts.current, latest, None, options.no_limits, operator=held)
        in_bytes = options.limits.max_bytes is not None
        sizes = self.log.sizes(starts.current, latest) if in_bytes else None
        if options.estimator.auto is not None and now is not None:
            self._interval_ms = now.interval_ms
        planned = plan(
            starts.current,
            latest,
            None if now is None else now.rate_per_s,
            replace(options.limits, seconds_per_batch=self._interval_ms / 1000),
            sizes,
            rate_limit=None if now is None else now.rate_limit,
            operator=operator,
            ceiling=None if now is None else now.ceiling,
        )
        if self._too_few(planned.lag):
            return empty_plan(starts.current, latest)
        return planned

    def _too_few(self, unread: int) -> bool:
        """Return whether ``minOffsetsPerTrigger`` delays a batch with this many unread offsets.

        As in the native connector, the delay counts from the last plan that was not delayed, even
        an empty plan. Unlike the native connector, a run with ``Trigger.AvailableNow`` never delays
        its last records, because the run would end without them.
        """
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._target is not None:
            return False
        now = self._clock.monotonic()
        longest_ms = self._options.max_trigger_delay_ms
        waited_ms = int(min((now - self._last_let_through) * 1000, longest_ms))
        if should_wait(unread, minimum, waited_ms, longest_ms):
            return True
        self._last_let_through = now
        return False

    def _seen(self, offset: StreamOffset, topics: Mapping[str, Topic]) -> Positions:
        """Return the highest known end offset of each partition; empty if no partition is gone.

        The end offsets come from this process, and from earlier plans of the gate in the ledger.
        """
        if not any(
            tp.topic not in topics
            or tp.partition not in topics[tp.topic].partitions
            or not topics[tp.topic].may_be(offset.topic_ids.get(tp.topic))
            for tp in offset.positions
        ):
            return {}
        if self._gate_ledger is None:
            return self._latest
        ledger_ends = self._gate_ledger.latest_seen(offset.topic_ids)
        return {
            tp: max(ledger_ends.get(tp, 0), self._latest.get(tp, 0))
            for tp in {**ledger_ends, **self._latest}
        }

    def _withdraw_losses(self, starts: StartOffsets) -> None:
        """Withdraw the recorded losses of topics that are visible again."""
        if not starts.returned:
            return
        _LOG.warning(
            "%s has topics that did not exist or were not visible before; reading continues from"
            " %s.",
            self.log.name,
            ", ".join(f"{tp} {position}" for tp, position in sorted(starts.returned.items())),
        )
        if self._gate_ledger is not None:
            self._gate_ledger.withdraw_losses(starts.returned, starts.topic_ids)

    def _account_for(self, losses: Sequence[MissingOffsets], topic_ids: Mapping[str, str]) -> None:
        """Record offsets that were gone before the plan, or raise `DataLossError`."""
        self._refuse_or_log(losses)
        if losses and self._gate_ledger is not None:
            self._gate_ledger.record_losses(losses, topic_ids)

    def _refuse_or_log(self, losses: Sequence[MissingOffsets]) -> None:
        if not losses:
            return
        described = describe_losses(losses)
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{self.log.name} has lost records that this query had still to read: {described};"
                " to continue without them, and only report the loss, set the option failOnDataLoss"
                " to false."
            )
        _LOG.warning(
            "%s has lost records that this query had still to read: %s", self.log.name, described
        )

    def begin(self, start: dict[str, Any], end: dict[str, Any]) -> ToRead:
        """Write the batch between two offsets into the ledger. Return the ranges for its tasks.

        Raises:
            DataLossError: Offsets of a repeated batch are gone, and ``failOnDataLoss`` is set.
            GateInUseError: Another query owns the gate.
            OptionError: The batch belongs to another gate.
        """
        since, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        until.refuse_another_gate(self._options.gate)
        ranges = until.ranges_from(since)
        lost: Sequence[MissingOffsets] = ()
        account = None
        if (ledger := self._gate_ledger) is not None and not until.replay:
            ledger.claim()
            if not since.first:
                self._know_before(ledger, since, until)
            if until.begins:
                ledger.begin_checkpoint(until)
            if since.first:
                # A checkpoint that continues from the ledger's position begins behind all planned
                # offsets, so nothing is resolved for it. The first offset's id does not identify
                # it: Spark requests the first offset again, and each answer has another id.
                self._settle_what_is_read_again(ledger, until)
                ledger.restarted()
            if ranges:
                # Another process planned a batch that Spark runs again after a restart.
                own_plan = self._planned if self._planned and self._planned.end == end else None
                lost = own_plan.losses if own_plan else self._lost_since(ledger, until, ranges)
                ledger.begin(
                    until,
                    ranges,
                    own_plan.plan if own_plan else None,
                    own_plan.latest if own_plan else {},
                )
                ledger.record_losses(lost, until.topic_ids, until, ranges)
                account = ledger.account(until, ranges)
        cover = merge(loss.missing for loss in lost)
        left = [part for r in ranges for part in r.subtract(cover.get(r.topic_partition, ()))]
        fail_on_loss = self._options.fail_on_data_loss or bool(until.replay)
        return ToRead(
            left,
            self.log.aborted(left),
            until.topic_ids,
            since.after_of(until.topic_ids),
            fail_on_loss,
            account,
        )

    def _fail_abandoned(self) -> None:
        """Mark batches in progress as failed if their owner is gone, as in a restored ledger.

        No batch of this query runs now, because Spark plans a batch only after it has processed the
        previous batch. An idle gate is checked too, since its next batch may come late.
        """
        now_s = self._clock.monotonic()
        if self._gate_ledger is None or now_s < self._next_abandoned_s:
            return
        self._next_abandoned_s = now_s + _ABANDONED_LOOK_S
        for key in self._gate_ledger.resolve_abandoned():
            _LOG.warning(
                "Batch %s of gate %r is in progress, and its owner has not renewed the batch's"
                " lease, which has expired; the batch counts as failed now.",
                key,
                self._options.gate,
            )

    def _settle_what_is_read_again(self, ledger: GateLedger, first: StreamOffset) -> None:
        """Resolve open batches of earlier checkpoints that a new checkpoint reads again."""
        ranges = [tp.range(at, _LAST_OFFSET) for tp, at in first.begins.items()]
        if keys := ledger.supersede(first, ranges, _READ_AGAIN):
            _LOG.warning(
                "Gate %r reads %d open batches of earlier checkpoints again, so no backfill runs"
                " them: %s.",
                self._options.gate,
                len(keys),
                ", ".join(keys),
            )

    def _resume(
        self,
        offset: StreamOffset,
        topics: Mapping[str, Topic],
        earliest: Positions,
        latest: Positions,
    ) -> tuple[StreamOffset, StreamOffset | None]:
        """Compare checkpoint and ledger when a query starts; see `headrace.gate.source.resumption`.

        Returns:
            The offset from which to continue, and the end of an interrupted batch that must run
            first, or None.
        """
        if self._gate_ledger is None:
            return offset, None
        is_compared = self._is_compared and not self._gate_ledger.went_back
        if is_compared and not offset.first:
            return offset, None
        memory = self._gate_ledger.known()
        if offset.first:
            return self._resume_anew(self._gate_ledger, offset, memory)
        refuse_another_ledger(offset, memory)
        self._add_unknown(self._gate_ledger, offset, memory, earliest)
        # A copy of the checkpoint lacks topics that are newer than the copy.
        now = replace(offset, topic_ids={**topic_ids_of(topics), **offset.topic_ids})
        beyond = refuse_an_older_checkpoint(now, memory, latest)
        self._is_compared = True
        if beyond:
            _LOG.warning(
                "Gate %r continues from its ledger's position, which is beyond its checkpoint: %s.",
                memory.gate,
                ", ".join(f"{tp} {until}" for tp, until in sorted(beyond.items())),
            )
            planned = memory.planned(offset.checkpoint_id)
            positions = {**offset.positions, **beyond}
            after = {tp: checksum for tp, checksum in offset.after.items() if tp not in beyond}
            moved = replace(now, positions=positions, after=after, planned=planned)
            # Spark repeats the last batch of its checkpoint, but an older copy lacks that batch.
            return moved, interrupted_end(moved, memory)
        if memory.restarted_by is not None:
            _LOG.warning(
                "%s asked gate %r to start anew, but its query still has the old checkpoint; stop"
                " the query, delete the checkpoint, and start the query again.",
                memory.restarted_by,
                memory.gate,
            )
        # Keep the actions until a start no longer needs them: a start that is killed early is
        # repeated.
        is_adopted = bool(offset.gate_id) and offset.gate_id != memory.gate_id
        if memory.has_asked and not self._goes_on and not is_adopted:
            self._gate_ledger.start_obeyed()
        return offset, None

    def _resume_anew(
        self, gate_ledger: GateLedger, first: StreamOffset, known: GateMemory
    ) -> tuple[StreamOffset, StreamOffset | None]:
        """Return the start of a new checkpoint, and the end of an interrupted batch, if any."""
        if not known.of_topics(first):
            return first, None
        if self._options.new_checkpoint is NewCheckpoint.RESTART:
            _LOG.warning(
                "Gate %r starts anew, because of its option %s.", known.gate, NEW_CHECKPOINT
            )
            return first, None
        if known.restarted_by is not None:
            _LOG.warning("Gate %r starts anew, as %s asked.", known.gate, known.restarted_by)
            return first, None
        if self._options.new_checkpoint is NewCheckpoint.REFUSE:
            raise OptionError(refusal(known))
        offset = continued(first, known)
        if not self._goes_on:
            self._goes_on = True
            sentence = going_on(offset, known)
            _LOG.warning(
                "Gate %r: %s; to process everything again, run `headrace restart %s --why TEXT`,"
                " and start the query with another new checkpoint.",
                known.gate,
                sentence,
                shlex.quote(known.gate),
            )
            gate_ledger.continues(sentence)
        return offset, interrupted_end(offset, known)

    def _add_unknown(
        self,
        gate_ledger: GateLedger,
        offset: StreamOffset,
        known: GateMemory,
        earliest: Positions,
    ) -> None:
        """Add a dead batch for offsets that the checkpoint has planned, but the ledger lacks."""
        if offset.planned <= known.planned(offset.checkpoint_id):
            return
        gaps = gate_ledger.gaps(offset.checkpoint_id)
        ranges = unknown_ranges(offset, known, earliest, gate_ledger.lost(), gaps)
        if not ranges:
            return
        _LOG.warning(
            "The ledger of gate %r lacks batches that its checkpoint has committed, as after a"
            " restore from an older copy. One dead batch now replaces them: %s.",
            known.gate,
            ", ".join(map(str, ranges)),
        )
        gate_ledger.add_unknown(offset, ranges)

    def _know_before(self, ledger: GateLedger, since: StreamOffset, until: StreamOffset) -> None:
        """Compare checkpoint and ledger if Spark repeats a batch before it plans a new one."""
        if self._is_compared or self._planned is not None:
            return
        memory = ledger.known()
        refuse_another_ledger(until, memory)
        earliest = self.log.earliest(since.positions)
        self._add_unknown(ledger, since, memory, earliest)

    def _lost_since(
        self, gate_ledger: GateLedger, until: StreamOffset, ranges: Sequence[OffsetRange]
    ) -> list[MissingOffsets]:
        """Return the losses of a batch since its plan; empty if the batch is not read again."""
        if not gate_ledger.is_to_run(until, ranges):
            return []
        planned = [PlannedRange(r, topic_id=until.topic_ids.get(r.topic)) for r in ranges]
        lost = [
            MissingOffsets(missing, "it has gone since it was planned")
            for missing in gone(self.log, planned)
        ]
        self._refuse_or_log(lost)
        return lost

    def close(self) -> None:
        """Release the log, the gate and the ledger."""
        self.log.close()
        if self._gate_ledger is not None:
            self._gate_ledger.close()


def _ranges_between(current: Positions, until: Positions) -> list[OffsetRange]:
    return [tp.range(current[tp], end) for tp, end in until.items() if current[tp] < end]


def _open_gate_ledger(
    log: Log,
    options: SourceOptions,
    clock: Clock,
    driver: str | None,
    open_ledger: OpenLedger,
) -> GateLedger | None:
    if options.gate is None or options.ledger is None:
        return None
    gate = GateIdentity(
        options.gate,
        options.interval_ms,
        options.estimator,
        log.source,
        log.servers,
        driver,
        options.read,
    )
    return GateLedger(options.ledger, gate, clock, open_ledger=open_ledger)
