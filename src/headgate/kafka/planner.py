"""The planner's side of a stream: what each batch will read, and the ledger's row for it.

It runs in a process of its own on the driver, for as long as the query runs.
"""

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate.control.plan import Plan, hold, plan, should_wait
from headgate.control.ranges import OffsetRange, TopicPartition
from headgate.errors import DataLossError
from headgate.kafka.advance import Footing, Loss, find_footing
from headgate.kafka.lookup import Lookup
from headgate.kafka.options import KafkaOptions
from headgate.kafka.positions import StreamOffset, nested
from headgate.kafka.subscription import Cluster
from headgate.ledger import Ledger, PlannedBatch, PlannedRange

_LOG: Final = logging.getLogger("headgate.kafka")

# How long a plan waits for the report of the batch before it (part of the interval): the report
# comes some 10 ms after a batch ends, and a batch that overran is followed by the next at once.
_REPORT_PATIENCE: Final = 0.1
_REPORT_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class _Planned:
    """The last plan, kept until Spark asks for its tasks."""

    end: dict[str, Any]
    plan: Plan
    latest: Mapping[TopicPartition, int]
    batch: PlannedBatch | None


class StreamPlanner:
    """Plans the batches of one query's source.

    Every method raises ``BrokerError`` where Kafka cannot be reached and ``LedgerError`` where the
    ledger cannot: the batch does not start then.
    """

    def __init__(self, options: KafkaOptions, parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism
        self._lookup = Lookup(
            options.client, options.fetch_offset_retries, options.fetch_offset_retry_interval_ms
        )
        self._cluster = Cluster(options, self._lookup)
        self._ledger = self._open_ledger()
        self._target: Mapping[TopicPartition, int] | None = None
        self._latest: Mapping[TopicPartition, int] = {}
        self._planned: _Planned | None = None
        self._last_batch_at = -float("inf")
        self._listening = True

    def _open_ledger(self) -> Ledger | None:
        options = self._options
        if options.gate is None:
            return None
        ledger = Ledger.open(options.ledger)
        ledger.declare_gate(
            options.gate,
            interval_ms=options.interval_ms,
            source="kafka",
            estimator=options.estimator.to_text(),
        )
        return ledger

    def initial(self) -> dict[str, Any]:
        """Where a fresh checkpoint begins."""
        topics = self._cluster.topics(must_exist=True)
        return StreamOffset(
            positions=self._cluster.starting_positions(topics),
            gate=self._options.gate,
            run=uuid.uuid4().hex,
            topic_ids={n: t.topic_id for n, t in topics.items() if t.topic_id is not None},
            first=True,
        ).to_json()

    def stop_at_latest(self) -> None:
        """For ``Trigger.AvailableNow``: what is there now is all that this run reads."""
        partitions = self._cluster.partitions(self._cluster.topics())
        self._target = self._lookup.latest(partitions)

    def latest(self) -> dict[str, dict[str, int]] | None:
        """The latest offsets as the last plan saw them."""
        return nested(self._latest) or None

    def advance(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself where there is none to run.

        Args:
            start: the end of the last batch.
            everything: whether the trigger takes all there is whatever the limits (``once``).

        Raises:
            DataLossError: offsets are gone and ``failOnDataLoss`` is set.
        """
        offset = StreamOffset.from_json(start)
        topics = self._cluster.topics()
        earliest, latest = self._lookup.bounds(self._cluster.partitions(topics))
        footing = find_footing(offset, topics, earliest, latest)
        self._latest = latest
        self._account_for(footing.losses)
        decided = self._decide(footing, self._admissible(footing, latest), everything=everything)
        if decided.records == 0 and not offset.first and not footing.losses:
            return start
        end = offset.moved(decided.until, footing.begins, footing.topic_ids).to_json()
        self._planned = _Planned(end, decided, latest, None)
        self._last_batch_at = time.monotonic()
        return end

    def _admissible(
        self, footing: Footing, latest: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """How far this run may read at most."""
        if self._target is None:
            return latest
        return {
            tp: min(end, self._target.get(tp, footing.current[tp])) for tp, end in latest.items()
        }

    def _decide(
        self, footing: Footing, latest: Mapping[TopicPartition, int], *, everything: bool
    ) -> Plan:
        options = self._options
        if everything:
            return plan(footing.current, latest, None, options.no_limits)
        decided = plan(footing.current, latest, self._rate(), options.limits)
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        if options.min_offsets_per_trigger is not None and should_wait(
            decided.lag,
            options.min_offsets_per_trigger,
            int(min(waited_ms, options.max_trigger_delay_ms)),
            options.max_trigger_delay_ms,
        ):
            return hold(footing.current, latest)
        return decided

    def _rate(self) -> float | None:
        """The gate's rate, after the report of the last batch if that comes soon."""
        if self._ledger is None or self._options.gate is None:
            return None
        self._await_report(self._ledger, self._options.gate)
        return self._ledger.rate(self._options.gate)

    def _await_report(self, ledger: Ledger, gate: str) -> None:
        batch = self._planned.batch if self._planned else None
        if batch is None or not batch.ranges:
            return
        patience_s = self._options.interval_ms / 1000 * _REPORT_PATIENCE if self._listening else 0
        deadline = time.monotonic() + patience_s
        while not (heard := _is_reported(ledger, gate, batch)):
            if time.monotonic() >= deadline:
                break
            time.sleep(_REPORT_POLL_S)
        # Where nobody listens (no headgate.register), waiting for it each time would be in vain.
        self._listening = heard

    def _account_for(self, losses: Sequence[Loss]) -> None:
        if not losses:
            return
        told = "; ".join(
            f"{loss.missing} is gone ({loss.why})" if loss.missing.count else loss.why
            for loss in losses
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"Kafka has lost records that this query had still to read: {told}; to go on"
                " without them, counted, set the option failOnDataLoss to false."
            )
        _LOG.warning("Kafka has lost records that this query had still to read: %s", told)
        if self._ledger is not None and self._options.gate is not None:
            self._ledger.record_losses(self._options.gate, [loss.missing for loss in losses])

    def begin(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        """The ranges of the batch between two offsets, once the ledger has them."""
        until = StreamOffset.from_json(end)
        ranges = until.ranges_from(StreamOffset.from_json(start))
        if self._ledger is not None and self._options.gate is not None:
            known = self._planned if self._planned and self._planned.end == end else None
            batch = self._as_planned(self._options.gate, until.run, ranges, known)
            self._ledger.begin(batch)
            if known is not None:
                self._planned = _Planned(known.end, known.plan, known.latest, batch)
        return ranges

    def _as_planned(
        self, gate: str, run: str, ranges: Sequence[OffsetRange], known: _Planned | None
    ) -> PlannedBatch:
        """For the ledger; of a batch planned before a restart only the ranges are known."""
        return PlannedBatch(
            gate=gate,
            run_id=run,
            ranges=tuple(
                PlannedRange(
                    r,
                    known.latest.get(r.topic_partition) if known else None,
                    known.plan.reasons.get(r.topic_partition) if known else None,
                )
                for r in ranges
            ),
            reason=known.plan.reason if known else "run again after a restart",
            bootstrap_servers=self._options.bootstrap_servers,
            lag=known.plan.lag if known else None,
            rate_per_s=known.plan.rate_per_s if known else None,
        )

    def close(self) -> None:
        """Let the ledger go."""
        if self._ledger is not None:
            self._ledger.close()


def _is_reported(ledger: Ledger, gate: str, batch: PlannedBatch) -> bool:
    newest = ledger.rates(gate, limit=1)
    return bool(newest) and newest[0].schedule_id == batch.schedule_id
