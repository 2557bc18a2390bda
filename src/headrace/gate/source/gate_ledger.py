"""A stream planner's access to the ledger: its gate's rate, batches and losses.

A gate has one query at a time: the planner must claim the gate before it begins a batch. The claim
is a lease of 30 s in the gate's row, which a thread of the planner renews. Each batch is begun
under the lease, in the same statement, so a query whose gate was taken over begins no batch. A
second query is refused as soon as the first renews its lease; a query whose process has ended is
replaced at once.

A ledger can be replaced by an older one while its query runs, for example if a delayed standby is
promoted. Each plan reads the gate's number of begun batches beside its rate. If the number has
fallen, checkpoint and ledger are compared again.
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
    """Opener of a ledger, as `Ledger.open` is."""

    def __call__(self, url: str, /, *, timeouts: Timeouts) -> Ledger:
        """Return the ledger, with these timeouts for its calls."""


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """A gate as its source declares it, and the query that owns it.

    Attributes:
        driver: Name of the process of the query's program; None if the process did not register.
        read: The reader of the gate from which the query was made; None without a `Gate`.
    """

    name: str
    interval_ms: int
    estimator: EstimatorSettings
    source: str
    servers: str
    driver: str | None = None
    read: str | None = None


class GateLedger:
    """One gate's part of the ledger, for its planner.

    Every method raises ``LedgerError`` if the ledger cannot be read or written. For an unreachable
    ledger, this happens only after the retry timeout, or when the driver has ended: batches begun
    later would never run. Batches are begun after `claim`.
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
        """Claim the gate for this query, before any batch; a second call has no effect.

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
                f"The driver ended before its query could have the gate {self._gate.name!r}; start"
                " it again."
            )
        self._clock.sleep(seconds)

    def admission(self) -> GateMoment | None:
        """Return the gate, after waiting up to one interval for its last batch's report.

        None if the gate is not declared. Newer actions of operators are marked as seen. Without a
        report, because of a crash or a lost event, the rate in force applies.
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
        """Write the plan of a batch; an existing batch gets one more attempt.

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
        """The identity of the gate in its ledger; empty before `known`."""
        return self._gate_id

    def known(self) -> GateMemory:
        """Return the ledger's knowledge of the gate for a start. Call `claim` before this."""
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
        """Record where a checkpoint begins in partitions that its first batch does not read."""
        read = {offsets.topic_partition for offsets in end.ranges_from(StreamOffset({}))}
        starts = [tp.range(at, at) for tp, at in end.begins.items() if tp not in read]
        if starts:
            with self._while_the_driver_lives():
                self._ledger.batches.begin_checkpoint(self._batch(end, starts))

    def add_unknown(self, offset: StreamOffset, ranges: Sequence[OffsetRange]) -> None:
        """Add a dead batch for ranges that Spark has committed and the ledger lacks."""
        error = unknown_outcome(ranges)
        batch = replace(self._batch(offset, ranges), reason="committed, and unknown to this ledger")
        with self._while_the_driver_lives():
            self._ledger.batches.add_unknown(batch, error, self._owner)

    def gaps(self, checkpoint_id: str) -> list[OffsetRange]:
        """Return the ranges that a checkpoint has planned and no batch of the ledger reads."""
        with self._while_the_driver_lives():
            findings = self._ledger.proofs.verify(self._gate.name).findings
        return [
            finding.offsets
            for finding in findings
            if finding.kind in {FindingKind.GAP, FindingKind.MISSING}
            and finding.checkpoint_id == checkpoint_id
        ]

    def lost(self) -> list[OffsetRange]:
        """Return all ranges that are counted as lost."""
        with self._while_the_driver_lives():
            return [loss.offsets for loss in self._ledger.history.losses(self._gate.name)]

    def continues(self, sentence: str) -> None:
        """Record that a query with a new checkpoint continues from the ledger's position."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.continued(self._gate.name, sentence)

    def resolve_abandoned(self) -> list[str]:
        """Fail the gate's batches in progress whose lease has expired; return their keys.

        No batch of the query may run meanwhile.
        """
        name, batches = self._gate.name, self._ledger.batches
        with self._while_the_driver_lives():
            if batches.open_batch(name) is None:  # The usual case, without a write.
                return []
            # A batch without a lease may belong to a query without a handler, which will report it.
            return batches.resolve_abandoned(name, but=None, unowned_before_ms=0)

    def supersede(self, end: StreamOffset, ranges: Sequence[OffsetRange], why: str) -> list[str]:
        """Resolve the open batches of other checkpoints within these ranges; return their keys."""
        with self._while_the_driver_lives():
            return self._ledger.batches.supersede(self._batch(end, ranges), why, self._owner)

    def restarted(self) -> None:
        """Record that the new checkpoint of an operator's `restart` is in the ledger."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.restarted(self._gate.name)

    def start_obeyed(self) -> None:
        """Record that this start no longer needs the operators' actions."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.start_obeyed(self._gate.name)

    def is_to_run(self, end: StreamOffset, ranges: Sequence[OffsetRange]) -> bool:
        """Return whether the stream must still run a batch: no success, nor a backfill's batch."""
        with self._while_the_driver_lives():
            batch = self._ledger.batches.get(self._batch(end, ranges).batch_key)
        return batch is None or batch.status in {Status.IN_PROGRESS, Status.FAILED}

    def account(self, end: StreamOffset, ranges: Sequence[OffsetRange]) -> LossAccount:
        """Return the account in which the tasks of a batch record unreadable offsets."""
        key = self._batch(end, ranges).batch_key
        return LossAccount(self._gate.name, self._ledger.url, key, end.topic_ids)

    def record_losses(
        self,
        losses: Sequence[MissingOffsets],
        topic_ids: Mapping[str, str],
        end: StreamOffset | None = None,
        ranges: Sequence[OffsetRange] = (),
    ) -> None:
        """Record offsets that were gone before they were read, with their batch if there is one."""
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
        """Withdraw the losses of topics that are visible again."""
        with self._while_the_driver_lives():
            for tp, position in positions.items():
                self._ledger.history.withdraw_loss(
                    self._gate.name, tp, topic_ids.get(tp.topic), position
                )

    def latest_seen(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Return the last planned ends of the partitions of topics with these ids."""
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
    """Return a process's number and machine, for an operator; ``otherwise`` is a fallback."""
    number = number_of(process) if process is not None else None
    return f"process {number or otherwise} on {socket.gethostname()}"


def await_turn(
    gate: str,
    try_once: Callable[[str | None], GateQuery | None],
    wait: Callable[[float], None],
) -> None:
    """Wait until no other query owns a gate.

    A query that is known to have ended is replaced at once. A query that renews its lease meanwhile
    is alive, and leads to `GateInUseError`. For any other query, this waits until its lease has
    expired, because its machine may be lost. ``try_once`` returns the query that owns the gate, or
    None if the gate is free. Its argument is that query's owner once the owner is known to be gone.
    ``wait`` may raise.
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
        f" {since}{checkpoint}: a gate has one query at a time, so stop that one first"
        f" (`headrace stop {shlex.quote(gate)}` does from anywhere), or give this one a gate of"
        " another name."
    )


class ClaimedGate:
    """A gate that a planner has claimed, until `release`; ``wait`` may raise to stop waiting."""

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
        """Release the gate for the next query; if that fails, the next query waits for the lease.

        After a kill of the program, Spark's JVM still calls this. The gate then stays claimed, so
        that the end is visible in the ledger. Nobody waits, because the owner is known to be gone.
        """
        self._renewal.stop(wait=False)
        if self._claim.driver is not None and is_gone(self._claim.driver):
            return
        try:
            with cancel_when(lambda: True, "the query ended"):
                self._ledger.gates.release(self._claim.gate, self._claim.owner)
        except HeadraceError as error:
            _LOG.warning("The gate %r was not released: %s", self._claim.gate, error)
