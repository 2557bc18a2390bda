"""What a stream's planner reads and writes in the ledger: its gate's rate, batches and losses."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.control import EstimatorSettings, OffsetRange, Plan
from headgate.kafka.positions import Positions
from headgate.ledger import Ledger, PlannedBatch, PlannedRange

# How long a plan waits for the report of the batch before it (part of the interval): the report
# comes some 10 ms after a batch ends, and a batch that overran is followed by the next at once.
_REPORT_PATIENCE: Final = 0.1
_REPORT_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """A gate as its source declares it."""

    name: str
    interval_ms: int
    estimator: EstimatorSettings
    bootstrap_servers: str


class GateBooks:
    """One gate's pages of the ledger, for its planner.

    Every method raises ``LedgerError`` where the ledger cannot be read or written.
    """

    def __init__(self, ledger_url: str, gate: GateIdentity) -> None:
        self._gate = gate
        self._ledger = Ledger.open(ledger_url)
        self._ledger.declare_gate(
            gate.name,
            interval_ms=gate.interval_ms,
            source="kafka",
            estimator=gate.estimator.to_text(),
        )
        self._begun: PlannedBatch | None = None
        self._listening = True

    def rate(self) -> float | None:
        """The rate in force (records/s), after the report of the last batch if that comes soon.

        Without a report, because of a crash or a lost event, it is the rate that was in force.
        """
        self._await_report()
        return self._ledger.rate(self._gate.name)

    def _await_report(self) -> None:
        if self._begun is None:
            return
        patience_s = self._gate.interval_ms / 1000 * _REPORT_PATIENCE if self._listening else 0
        deadline = time.monotonic() + patience_s
        while not (heard := self._is_reported(self._begun.schedule_id)):
            if time.monotonic() >= deadline:
                break
            time.sleep(_REPORT_POLL_S)
        # Where nobody listens (no headgate.register), waiting for it each time would be in vain.
        self._listening = heard

    def _is_reported(self, batch: str) -> bool:
        newest = self._ledger.rates(self._gate.name, limit=1)
        return bool(newest) and newest[0].schedule_id == batch

    def begin(
        self, run: str, ranges: Sequence[OffsetRange], plan: Plan | None, latest: Positions
    ) -> None:
        """Write down what a batch is about to read; one that is there already is taken up again.

        Args:
            run: the identity of the checkpoint's life.
            ranges: what it reads.
            plan: what gave them; None for a batch that was planned before a restart.
            latest: the latest offsets when it was planned.
        """
        if not ranges:
            return
        batch = PlannedBatch(
            gate=self._gate.name,
            run_id=run,
            ranges=tuple(
                PlannedRange(
                    r,
                    latest.get(r.topic_partition),
                    plan.reasons.get(r.topic_partition) if plan else None,
                )
                for r in ranges
            ),
            reason=plan.reason if plan else "run again after a restart",
            bootstrap_servers=self._gate.bootstrap_servers,
            lag=plan.lag if plan else None,
            rate_per_s=plan.rate_per_s if plan else None,
        )
        self._ledger.begin(batch)
        self._begun = batch

    def record_losses(self, missing: Sequence[OffsetRange]) -> None:
        """Count offsets that were gone before they were read."""
        self._ledger.record_losses(self._gate.name, missing)

    def close(self) -> None:
        """Let the ledger go."""
        self._ledger.close()
