"""A stream planner's access to the ledger: its gate's rate, batches and losses.

A query claims its gate before it begins a batch: it is the only one behind it, or it does not
start. The claim is a lease in the ledger, which the query's planner renews in a thread of its own.
Each batch is begun under it, so that a query whose gate was taken over begins no batch.
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

# A batch that overran is followed by the next at once, before the report of it has come. Planned
# without it, the next would overrun as much. So a plan waits for it, at most one interval.
_REPORT_POLL_S: Final = 0.005

_UNKNOWN: Final[Positions] = {}


class OpenLedger(Protocol):
    """Opens a ledger, as `Ledger.open` does."""

    def __call__(self, url: str, /, *, timeouts: Timeouts) -> Ledger:
        """The ledger, whose calls wait so long for an unreachable database."""


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """A gate as its source declares it, and the query behind it.

    Attributes:
        driver: names the process of the query's program; None where it did not register.
        read: the reader of the gate that the query was made of; None without a `Gate`.
    """

    name: str
    interval_ms: int
    estimator: EstimatorSettings
    source: str
    servers: str
    driver: str | None = None
    read: str | None = None


class GateLedger:
    """One gate's pages of the ledger, for its planner.

    Every method raises ``LedgerError`` if the ledger cannot be read or written; if it cannot be
    reached any more, only after its retry timeout, or when the driver has ended: batches that its
    planner begins then would never run. Batches are begun after `claim`.
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
        """Have the gate for this query alone, before anything is begun; again is harmless.

        Raises `GateInUseError` where another query stands behind it.
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
        """Return the gate, after the report of its last batch if that comes soon.

        None while it is not declared. Operators' actions since the last time are marked as seen.
        Without a report, because of a crash or a lost event, the rate is the one that was in force.
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
        # Without a listener (no headrace.register), it would wait each time in vain.
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
        """Write the plan of a batch down; an existing batch is taken up again.

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
        """Return what the ledger knows of the gate, for a start; after `claim`."""
        name = self._gate.name
        self.went_back = False
        with self._while_the_driver_lives():
            # Not the one that the engine asked for last: from an older copy of its checkpoint it
            # asks for an old one first.
            open_to_stream = {Status.IN_PROGRESS, Status.FAILED}
            newest = self._ledger.batches.newest(name, 1, statuses=open_to_stream)
            last = newest[0] if newest else None
            asked = self._ledger.operator_limits.for_the_start(name)
            gate = self._ledger.gates.get(name)
            self._gate_id = "" if gate is None else gate.gate_id
            return GateMemory(
                ledger=redact_url(self._ledger.url),
                gate=name,
                gate_id=self._gate_id,
                checkpoints=self._ledger.history.checkpoints(name),
                last=last,
                last_ranges=() if last is None else self._ledger.batches.ranges(last.batch_key),
                adopted=frozenset(each.target for each in asked if each.target is not None),
                has_asked=bool(asked),
                restarted_by=next(
                    (each.author for each in asked if each.kind is OperatorActionKind.RESTART), None
                ),
            )

    def begin_checkpoint(self, end: StreamOffset) -> None:
        """Write down where a checkpoint begins in partitions of which its batch reads nothing."""
        read = {each.topic_partition for each in end.ranges_from(StreamOffset({}))}
        starts = [tp.range(at, at) for tp, at in end.begins.items() if tp not in read]
        if starts:
            with self._while_the_driver_lives():
                self._ledger.batches.begin_checkpoint(self._batch(end, starts))

    def add_unknown(self, offset: StreamOffset, ranges: Sequence[OffsetRange]) -> None:
        """Add a dead batch for what Spark has committed and the ledger does not know."""
        error = unknown_outcome(ranges)
        batch = replace(self._batch(offset, ranges), reason="committed, and unknown to this ledger")
        with self._while_the_driver_lives():
            self._ledger.batches.add_unknown(batch, error, self._owner)

    def gaps(self, checkpoint_id: str) -> list[OffsetRange]:
        """Return what a checkpoint has planned and no batch of the ledger reads."""
        with self._while_the_driver_lives():
            findings = self._ledger.proofs.verify(self._gate.name).findings
        return [
            each.offsets
            for each in findings
            if each.kind in {FindingKind.GAP, FindingKind.MISSING}
            and each.checkpoint_id == checkpoint_id
        ]

    def lost(self) -> list[OffsetRange]:
        """Return all ranges that are counted as lost."""
        with self._while_the_driver_lives():
            return [loss.offsets for loss in self._ledger.history.losses(self._gate.name)]

    def continues(self, sentence: str) -> None:
        """Write down that a query with a new checkpoint goes on from the ledger's position."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.continued(self._gate.name, sentence)

    def resolve_abandoned(self) -> list[str]:
        """Fail the gate's batches in progress whose lease has run out, while none is run."""
        name, batches = self._gate.name, self._ledger.batches
        with self._while_the_driver_lives():
            if batches.open_batch(name) is None:  # nearly always, and then nothing is written
                return []
            # A batch without a lease is perhaps of a query without a handler, whose report comes.
            return batches.resolve_abandoned(name, but=None, unowned_before_ms=0)

    def supersede(self, end: StreamOffset, ranges: Sequence[OffsetRange], why: str) -> list[str]:
        """Settle the open batches of other checkpoints that lie within these ranges."""
        with self._while_the_driver_lives():
            return self._ledger.batches.supersede(self._batch(end, ranges), why, self._owner)

    def restarted(self) -> None:
        """Write down that the checkpoint that an operator wanted anew is in the ledger."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.restarted(self._gate.name)

    def start_obeyed(self) -> None:
        """Write down that the operators' words for this start are not needed any more."""
        with self._while_the_driver_lives():
            self._ledger.operator_limits.start_obeyed(self._gate.name)

    def is_to_run(self, end: StreamOffset, ranges: Sequence[OffsetRange]) -> bool:
        """Whether a batch is still to be run by the stream: a success is not, nor a backfill."""
        with self._while_the_driver_lives():
            found = self._ledger.batches.get(self._batch(end, ranges).batch_key)
        return found is None or found.status in {Status.IN_PROGRESS, Status.FAILED}

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
        """Count offsets that were gone before they were read, by that batch if there is one."""
        if not losses:
            return
        key = self._batch(end, ranges).batch_key if end is not None else None
        of_gone = {loss.missing.topic: loss.topic_id for loss in losses if loss.topic_id}
        gone = [loss for loss in losses if loss.topic_id]
        others = [loss for loss in losses if not loss.topic_id]
        with self._while_the_driver_lives():
            for some, ids in ((gone, of_gone), (others, topic_ids)):
                self._ledger.history.record_losses(
                    self._gate.name,
                    [loss.missing for loss in some],
                    ids,
                    batch_key=key,
                    reasons={loss.missing: loss.reason for loss in some},
                )

    def withdraw_losses(self, positions: Positions, topic_ids: Mapping[str, str]) -> None:
        """Count nothing as lost any more of topics that are there again."""
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
        # A process whose parent has ended has another one.
        with cancel_when(lambda: os.getppid() != self._driver, "the driver ended"):
            yield

    def close(self) -> None:
        """Let the gate and the ledger go."""
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
    """A process of this machine as an operator finds it; ``otherwise`` is another's number."""
    number = number_of(process) if process is not None else None
    return f"process {number or otherwise} on {socket.gethostname()}"


def await_turn(
    gate: str,
    try_once: Callable[[str | None], GateQuery | None],
    wait: Callable[[float], None],
) -> None:
    """Return once no other query stands behind a gate.

    A query that is known to have ended is replaced at once. One that renews its lease meanwhile is
    alive: `GateInUseError`. One that does neither is waited for until its lease has run out, for
    its machine may be lost. ``try_once`` answers the query that has the gate, or None if it is
    free; it is given that query's owner where that is known to be gone. ``wait`` may raise.
    """
    seen: GateQuery | None = None
    gone: str | None = None
    while (other := try_once(gone)) is not None:
        if seen is None or other.owner != seen.owner:
            seen = other
        elif other.until_ms > seen.until_ms:
            raise GateInUseError(_in_use(gate, other))
        if other.has_ended:
            if gone == other.owner:
                return
            gone = other.owner
            continue
        wait(_LOOK_S)


def _in_use(gate: str, other: GateQuery) -> str:
    since = datetime.fromtimestamp(other.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    known = [each for each in (other.checkpoint, other.checkpoint_id) if each is not None]
    checkpoint = f", with the checkpoint {known[0]}" if known else ""
    return (
        f"The gate {gate!r} is in use by another query, of {other.described}, since"
        f" {since}{checkpoint}: a gate has one query at a time, so stop that one first"
        f" (`headrace stop {shlex.quote(gate)}` does from anywhere), or give this one a gate of"
        " another name."
    )


class ClaimedGate:
    """A gate that a planner has claimed, until `release`; ``wait`` may raise to end the waiting."""

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
        """Let the next query have the gate at once; if that fails, it has to wait for the lease.

        If the program was killed, Spark's end comes here too. Then it stays claimed, so that its
        end is known; nobody waits, for its owner is known to be gone.
        """
        self._renewal.stop(wait=False)
        if self._claim.driver is not None and is_gone(self._claim.driver):
            return
        try:
            with cancel_when(lambda: True, "the query ended"):
                self._ledger.gates.release(self._claim.gate, self._claim.owner)
        except HeadraceError as error:
            _LOG.warning("The gate %r was not released: %s", self._claim.gate, error)
