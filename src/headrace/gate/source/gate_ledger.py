"""Access of a stream's planner to the ledger: the rate, batches and losses of its gate.

A gate has one query at a time: the planner must claim the gate before it begins a batch. The claim
is a lease of 30 s in the gate's row, which a thread of the planner renews. The SQL statement that
begins a batch also checks the lease, so a query that has lost its gate begins no batch. A second
query is refused as soon as the first query renews its lease. A query whose process has ended is
replaced at once.

A ledger can be replaced by an older one while its query runs, for example if a delayed standby is
promoted. So each plan also reads how many batches the gate has begun. If the number has fallen,
the planner compares the checkpoint with the ledger again.
"""

import logging
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.core.system import is_gone, new_owner, number_of
from headrace.core.timing import GATE_LEASE_MS, Clock, LeaseRenewal, cancel_when
from headrace.errors import GateInUseError, HeadraceError, LedgerError
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.limits import OperatorActionKind, OperatorLimits
from headrace.gate.control.plan import Plan
from headrace.gate.ledger.connection import OF_A_QUERY, Timeouts, redact_url
from headrace.gate.ledger.gates import GateClaim, GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import FindingKind
from headrace.gate.ledger.records import GateMoment, PlannedBatch, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.gate.source.losses import LossAccount, MissingOffsets
from headrace.gate.source.resumption import GateMemory, unknown_outcome
from headrace.gate.source.stream_offset import StreamOffset

# After a batch that overran its interval, Spark requests the next batch at once, before the report
# arrives. Without the report, the next batch would be as large and overrun too. So a plan waits for
# the report, at most one interval. If none arrives (a crash, a lost event), the rate in force
# applies: a missing rate is never treated as a missing limit.
_REPORT_POLL_S: Final = 0.005

_UNKNOWN: Final[Positions] = {}


class OpenLedger(Protocol):
    """Function that opens a ledger, such as `Ledger.open`."""

    def __call__(self, url: str, /, *, timeouts: Timeouts) -> Ledger:
        """Open the ledger at a URL, with these timeouts for its calls."""


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """Gate as a source's options declare it, and the query that owns the gate.

    Attributes:
        driver: Name of the driver's process; None if it has not called `headrace.register`.
        read: Id of the `Gate.read` call that created the query's DataFrame; None without a `Gate`.
    """

    name: str
    interval_ms: int
    estimator: EstimatorSettings
    source: str
    servers: str
    driver: str | None = None
    read: str | None = None


class GateLedger:
    """Reads and writes of a planner in the ledger, for one gate.

    Every method raises ``LedgerError`` if the ledger cannot be read or written. If the ledger is
    unreachable, the method retries until the retry timeout, or until the driver has ended. Call
    `claim` before `begin`.
    """

    def __init__(
        self,
        ledger_url: str,
        gate: GateIdentity,
        clock: Clock = time,
        timeouts: Timeouts = OF_A_QUERY,
        open_ledger: OpenLedger = Ledger.open,
    ) -> None:
        self._gate = gate
        self._clock = clock
        self._driver = os.getppid()
        with self._while_the_driver_lives():
            self._ledger = open_ledger(ledger_url, timeouts=timeouts)
        self._owner = new_owner()
        self._interval_ms = gate.interval_ms
        self._claimed: ClaimedGate | None = None
        self._gate_id = ""
        self._begun: str | None = None
        self._begun_before: str | None = None
        self._seen_action: int | None = None
        self._begins = 0
        self.went_back = False
        """Whether the ledger was replaced by an older one since the last comparison with it."""

    def claim(self) -> None:
        """Claim the gate for this query, before the first batch. A second call has no effect.

        Raise `GateInUseError` if another query owns the gate.
        """
        if self._claimed is not None:
            return
        gate = self._gate
        claim = GateClaim(
            gate=gate.name,
            owner=self._owner,
            driver=gate.driver,
            read=gate.read,
            described=describe_process(gate.driver, otherwise=self._driver),
            interval_ms=gate.interval_ms,
            source=gate.source,
            estimator=gate.estimator.to_text(),
            keeps_interval=gate.estimator.auto is not None,
        )
        with self._while_the_driver_lives():
            self._claimed = ClaimedGate(self._ledger, claim, self._wait_for_the_gate)

    def _wait_for_the_gate(self, seconds: float) -> None:
        if os.getppid() != self._driver:
            raise LedgerError(
                f"The driver ended before its query could claim the gate {self._gate.name!r}; start"
                " the query again."
            )
        self._clock.sleep(seconds)

    def admission(self) -> GateMoment | None:
        """Wait up to one interval for the last batch's report. Return the gate's current state.

        Return None if the gate is not declared. New actions of operators are marked as seen. If no
        report arrives, because of a crash or a lost event, the current rate still applies.
        """
        with self._while_the_driver_lives():
            now = self._after_report()
            begins = 0 if now is None else now.begins
            self.went_back = self.went_back or begins < self._begins
            self._begins = begins
            if now is not None:
                self._mark_seen(now.operator)
                self._interval_ms = now.interval_ms
        return now

    def _mark_seen(self, operator: OperatorLimits) -> None:
        newest = operator.newest
        if newest is None or newest == self._seen_action:
            return
        self._ledger.operator_limits.mark_seen(self._gate.name, newest)
        self._seen_action = newest
        _LOG.info(
            "Gate %r is %s.",
            self._gate.name,
            operator.describe() or "under no limit and not paused",
        )

    def _after_report(self) -> GateMoment | None:
        now = self._ledger.gates.now(self._gate.name)
        if self._begun is None:
            return now
        # Without a listener (no headrace.register), no report ever arrives, so do not wait.
        listening = self._begun_before is None or _reported(now) == self._begun_before
        patience_s = self._interval_ms / 1000 if listening else 0
        deadline = self._clock.monotonic() + patience_s
        while _reported(now) != self._begun and self._clock.monotonic() < deadline:
            self._clock.sleep(_REPORT_POLL_S)
            now = self._ledger.gates.now(self._gate.name)
        return now

    def begin(
        self, end: StreamOffset, ranges: Sequence[OffsetRange], plan: Plan | None, latest: Positions
    ) -> None:
        """Write a planned batch to the ledger, or add an attempt if the batch exists.

        ``plan`` is None for a batch that was planned before a restart.
        """
        if not ranges:
            return
        batch = self._batch(end, ranges, plan, latest)
        with self._while_the_driver_lives():
            self._ledger.batches.begin(batch, query=self._owner)
        if batch.batch_key != self._begun:
            self._begun_before, self._begun = self._begun, batch.batch_key
            self._begins += 1

    @property
    def gate_id(self) -> str:
        """Id of the gate in its ledger; empty until `known` is called."""
        return self._gate_id

    def known(self) -> GateMemory:
        """Read the gate's history, for the start of its query. Call `claim` before this."""
        name = self._gate.name
        self.went_back = False
        with self._while_the_driver_lives():
            # Not the engine's last request: with an older copy of its checkpoint, the engine first
            # requests an old batch.
            open_to_stream = {Status.IN_PROGRESS, Status.FAILED}
            newest = self._ledger.batches.newest(name, 1, statuses=open_to_stream)
            last = newest[0] if newest else None
            actions = self._ledger.operator_limits.for_the_start(name)
            gate = self._ledger.gates.get(name)
            self._gate_id = "" if gate is None else gate.gate_id
            return GateMemory(
                ledger=redact_url(self._ledger.url),
                gate=name,
                gate_id=self._gate_id,
                checkpoints=self._ledger.history.checkpoints(name),
                last=last,
                last_ranges=() if last is None else self._ledger.batches.ranges(last.batch_key),
                adopted=frozenset(action.target for action in actions if action.target is not None),
                has_asked=bool(actions),
                restarted_by=next(
                    (
                        action.author
                        for action in actions
                        if action.kind is OperatorActionKind.RESTART
                    ),
                    None,
                ),
            )

    def begin_checkpoint(self, end: StreamOffset) -> None:
        """Record a checkpoint's start in the partitions that its first batch does not read."""
        read = {offsets.topic_partition for offsets in end.ranges_from(StreamOffset({}))}
        starts = [tp.range(at, at) for tp, at in end.begins.items() if tp not in read]
        if starts:
            with self._while_the_driver_lives():
                self._ledger.batches.begin_checkpoint(self._batch(end, starts))

    def add_unknown(self, offset: StreamOffset, ranges: Sequence[OffsetRange]) -> None:
        """Add a dead batch for ranges that Spark has committed, but the ledger lacks."""
        error = unknown_outcome(ranges)
        batch = replace(self._batch(offset, ranges), reason="committed, and unknown to this ledger")
        with self._while_the_driver_lives():
            self._ledger.batches.add_unknown(batch, error, self._owner)

    def gaps(self, checkpoint_id: str) -> list[OffsetRange]:
        """Return ranges that a checkpoint has planned, but no batch of the ledger contains."""
        with self._while_the_driver_lives():
            findings = self._ledger.proofs.verify(self._gate.name).findings
        return [
            finding.offsets
            for finding in findings
            if finding.kind in {FindingKind.GAP, FindingKind.MISSING}
            and finding.checkpoint_id == checkpoint_id
        ]

    def lost(self) -> list[OffsetRange]:
        """Return all ranges of the gate that are counted as lost."""
        with self._while_the_driver_lives():
            return [loss.offsets for loss in self._ledger.history.losses(self._gate.name)]

    def continues(self, sentence: str) -> None:
        """Record that a query with a new checkpoint continues from the ledger's position."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.continued(self._gate.name, sentence)

    def resolve_abandoned(self) -> list[str]:
        """Mark batches in progress as failed if their lease has expired; return their keys.

        Call this only while no batch of the query runs.
        """
        name, batches = self._gate.name, self._ledger.batches
        with self._while_the_driver_lives():
            if batches.open_batch(name) is None:  # The usual case, without a write.
                return []
            # A batch without a lease may belong to a query without a handler, which will report it.
            return batches.resolve_abandoned(name, but=None, unowned_before_ms=0)

    def supersede(self, end: StreamOffset, ranges: Sequence[OffsetRange], why: str) -> list[str]:
        """Resolve open batches that the new checkpoint reads again; return their keys."""
        with self._while_the_driver_lives():
            return self._ledger.batches.supersede(self._batch(end, ranges), why, self._owner)

    def restarted(self) -> None:
        """Record that an operator's `restart` is done, so that no later query restarts again."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.restarted(self._gate.name)

    def start_obeyed(self) -> None:
        """Record that the query has started, so that `adopt` and `continued` no longer apply."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.start_obeyed(self._gate.name)

    def is_to_run(self, end: StreamOffset, ranges: Sequence[OffsetRange]) -> bool:
        """Return whether the stream must run a batch: it is unknown, in progress or failed."""
        with self._while_the_driver_lives():
            batch = self._ledger.batches.get(self._batch(end, ranges).batch_key)
        return batch is None or batch.status in {Status.IN_PROGRESS, Status.FAILED}

    def account(self, end: StreamOffset, ranges: Sequence[OffsetRange]) -> LossAccount:
        """Return the `LossAccount` through which a batch's tasks record unreadable offsets."""
        key = self._batch(end, ranges).batch_key
        return LossAccount(self._gate.name, self._ledger.url, key, end.topic_ids)

    def record_losses(
        self,
        losses: Sequence[MissingOffsets],
        topic_ids: Mapping[str, str],
        end: StreamOffset | None = None,
        ranges: Sequence[OffsetRange] = (),
    ) -> None:
        """Record offsets that were gone before a task read them, with the batch's key if known."""
        if not losses:
            return
        key = self._batch(end, ranges).batch_key if end is not None else None
        of_gone = {loss.missing.topic: loss.topic_id for loss in losses if loss.topic_id}
        gone = [loss for loss in losses if loss.topic_id]
        rest = [loss for loss in losses if not loss.topic_id]
        with self._while_the_driver_lives():
            for some, ids in ((gone, of_gone), (rest, topic_ids)):
                self._ledger.history.record_losses(
                    self._gate.name,
                    [loss.missing for loss in some],
                    ids,
                    batch_key=key,
                    reasons={loss.missing: loss.reason for loss in some},
                )

    def withdraw_losses(self, positions: Positions, topic_ids: Mapping[str, str]) -> None:
        """Delete the losses after these positions, in topics that are visible again."""
        with self._while_the_driver_lives():
            for tp, position in positions.items():
                self._ledger.history.withdraw_loss(
                    self._gate.name, tp, topic_ids.get(tp.topic), position
                )

    def latest_seen(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Return the highest end offset that the gate's plans saw, by partition of these topics."""
        with self._while_the_driver_lives():
            seen = self._ledger.history.latest_seen(self._gate.name)
        return {tp: end for (tp, own), end in seen.items() if own == topic_ids.get(tp.topic)}

    def _batch(
        self,
        end: StreamOffset,
        ranges: Sequence[OffsetRange],
        plan: Plan | None = None,
        latest: Positions = _UNKNOWN,
    ) -> PlannedBatch:
        return PlannedBatch(
            gate=self._gate.name,
            checkpoint_id=end.checkpoint_id,
            ranges=tuple(
                PlannedRange(
                    r,
                    latest.get(r.topic_partition),
                    _told(plan, r),
                    end.topic_ids.get(r.topic),
                )
                for r in ranges
            ),
            reason=plan.describe(plan.reason) if plan else "run again after a restart",
            bootstrap_servers=self._gate.servers,
            lag=plan.lag if plan else None,
            rate_per_s=plan.rate_per_s if plan else None,
            bytes=plan.bytes if plan else None,
        )

    @contextmanager
    def _while_the_driver_lives(self) -> Iterator[None]:
        # A process gets another parent when its parent ends.
        with cancel_when(lambda: os.getppid() != self._driver, "the driver ended"):
            yield

    def close(self) -> None:
        """Release the gate and the ledger."""
        if self._claimed is not None:
            self._claimed.release()
        self._ledger.close()


def _told(plan: Plan | None, offsets: OffsetRange) -> str | None:
    reason = None if plan is None else plan.reasons.get(offsets.topic_partition)
    return None if plan is None or reason is None else plan.describe(reason)


_LOOK_S: Final = 0.1

_LOG: Final = logging.getLogger("headrace.source")


def _reported(now: GateMoment | None) -> str | None:
    return None if now is None else now.reported


def describe_process(process: str | None, otherwise: int) -> str:
    """Return a process's number and machine as text; ``otherwise`` replaces an unknown number."""
    number = number_of(process) if process is not None else None
    return f"process {number or otherwise} on {socket.gethostname()}"


def await_turn(
    gate: str,
    try_once: Callable[[str | None], GateQuery | None],
    wait: Callable[[float], None],
) -> None:
    """Wait until no other query owns a gate.

    A query that is known to have ended is replaced at once. If the other query renews its lease, it
    is alive, and `GateInUseError` is raised. Otherwise, the call waits until the lease has expired,
    because the other query's machine may be lost.

    ``try_once`` tries to claim the gate. It returns the query that owns the gate, or None after the
    claim. Its argument is the owner whose process has ended, if known, or None. ``wait`` sleeps for
    a time (s), and may raise an exception to stop the waiting.
    """
    seen: GateQuery | None = None
    gone: str | None = None
    while (query := try_once(gone)) is not None:
        if seen is None or query.owner != seen.owner:
            seen = query
        elif query.until_ms > seen.until_ms:
            raise GateInUseError(_in_use(gate, query))
        if query.has_ended:
            if gone == query.owner:
                return
            gone = query.owner
            continue
        wait(_LOOK_S)


def _in_use(gate: str, other: GateQuery) -> str:
    since = datetime.fromtimestamp(other.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    names = [name for name in (other.checkpoint, other.checkpoint_id) if name is not None]
    checkpoint = f", with the checkpoint {names[0]}" if names else ""
    return (
        f"The gate {gate!r} is in use by another query, of {other.described}, since"
        f" {since}{checkpoint}: a gate has one query at a time, so stop that query first (`headrace"
        f" stop {shlex.quote(gate)}` does from anywhere), or give this one a gate of another name."
    )


class ClaimedGate:
    """Claim on a gate: wait for the gate, then renew its lease in a thread until `release`.

    ``wait`` sleeps for a time (s), and may raise an exception to stop the waiting.
    """

    def __init__(self, ledger: Ledger, claim: GateClaim, wait: Callable[[float], None]) -> None:
        self._ledger = ledger
        self._claim = claim
        await_turn(
            claim.gate,
            lambda gone: ledger.gates.claim(claim, GATE_LEASE_MS, gone=gone),
            wait,
        )
        renew = partial(ledger.gates.renew, owner=claim.owner, lease_ms=GATE_LEASE_MS)
        self._renewal = LeaseRenewal("headrace-gate", renew, GATE_LEASE_MS, "gate {!r}", _LOG)
        self._renewal.keep(claim.gate)
        self._renewal.start()

    def release(self) -> None:
        """Release the gate. If that fails, the next query waits until the lease has expired.

        After a kill of the program, Spark's JVM still calls this. The gate then stays claimed, so
        that the ledger shows the kill. The next query does not wait, because the owner is known to
        be gone.
        """
        self._renewal.stop(wait=False)
        if self._claim.driver is not None and is_gone(self._claim.driver):
            return
        try:
            with cancel_when(lambda: True, "the query ended"):
                self._ledger.gates.release(self._claim.gate, self._claim.owner)
        except HeadraceError as error:
            _LOG.warning("The gate %r was not released: %s", self._claim.gate, error)
