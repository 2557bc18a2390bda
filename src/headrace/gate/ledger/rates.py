"""Rates of gates, rate samples of batches, and sink outages."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection

from headrace.errors import LedgerError
from headrace.gate.control.hold import SinkOutage
from headrace.gate.control.laws import rate_after_outage
from headrace.gate.ledger.database import Store, changed_rows, make_durable
from headrace.gate.ledger.error_report import storable
from headrace.gate.ledger.pruning import ROWS_AT_ONCE, some_at_once
from headrace.gate.ledger.records import BatchRecord, RateSample
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.transitions import SUCCEED, Status

_SQL: Final = statements("rate")


class RateStore(Store):
    """The rate of each gate, and the samples from which the rates were learnt."""

    def current(self, gate_name: str) -> float | None:
        """Return the gate's rate in force (records/s); None before a rate is learnt."""
        rate_per_s: float | None = self._database.scalar(_SQL["current"], gate=gate_name)
        return rate_per_s

    def report(
        self,
        batch_key: str,
        query_batch_id: int,
        start_time_ms: int,
        sample: RateSample | None,
        *,
        batch_cost: str | None = None,
        interval_ms: int | None = None,
    ) -> None:
        """Store Spark's report of a finished batch, in one transaction.

        An ``in_progress`` batch becomes ``success`` (transition D). A batch that the gate's handler
        has already ended stays unchanged. Only the transition is durable when the method returns. A
        crash of the database server may lose the sample.

        Args:
            batch_key: Key of the batch.
            query_batch_id: Spark's number of the batch.
            start_time_ms: Start of the batch (ms since the epoch).
            sample: Measurements of the batch. The sample's new rate, unless None, is put in force.
                The sample's number of records, unless 0, is stored with the batch. A repeated call
                with the same sample changes nothing.
            batch_cost: Text of the new `SourceCost` of a batch; only used with a sample. None
                leaves the cost unchanged.
            interval_ms: New interval of the gate (ms); only used with a sample. None leaves the
                interval unchanged.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        if sample is not None:
            _refuse_no_rate(sample)
        ended = self._ended(batch_key, None, None)
        attached = {
            "batch": batch_key,
            "number": query_batch_id,
            "started_ms": start_time_ms,
            "by": None,
            "gone": None,
        }

        def report(connection: Connection) -> None:
            if sample is not None:
                status = self._publish(connection, sample, batch_cost, interval_ms)
                if sample.batch_key == batch_key and status not in {None, Status.IN_PROGRESS}:
                    return  # The usual case: the handler has already ended the batch.
            execute(connection, statements("batch")["attach"], attached | self._leased(None))
            if changed_rows(connection, SUCCEED.statement, ended):
                make_durable(connection)

        # The next batch replaces a lost sample, but nothing replaces the lost end of a batch.
        self._database.write(report, durable=False)

    def _publish(
        self,
        connection: Connection,
        sample: RateSample,
        batch_cost: str | None,
        interval_ms: int | None,
    ) -> str | None:
        """Put a sample's rate in force, and store the sample.

        The result is the status of the sample's batch; None if the sample has no batch or no
        records.
        """
        # Update the gate's row first: the lock makes the gate's next report wait for this one.
        values = _values(sample, batch_cost, interval_ms)
        execute(connection, _SQL["put_in_force"], values)
        self._insert_under(sample.gate, connection, _SQL["keep_sample"], values)
        if sample.batch_key is None or not sample.records:
            return None
        status: str | None = execute(connection, _SQL["set_records"], values).scalar()
        return status

    def history(
        self, gate_name: str, limit: int = 100, *, before_ms: int | None = None
    ) -> tuple[RateSample, ...]:
        """Return a gate's newest rate samples up to the time ``before_ms``, newest first."""
        rows = self._database.rows(_SQL["newest"], gate=gate_name, before_ms=before_ms, limit=limit)
        return tuple(RateSample(**row._asdict()) for row in rows)

    def reported_ms(self, batches: Iterable[BatchRecord]) -> dict[str, int]:
        """Return the processing time of batches (ms), including plan and commit, by batch key.

        A batch without a report has no entry.
        """
        by_gate = defaultdict[str, list[BatchRecord]](list)
        for batch in batches:
            by_gate[batch.gate].append(batch)
        return {
            row.batch_key: row.processing_delay_ms
            for gate_name, own in by_gate.items()
            for keys in some_at_once([batch.batch_key for batch in own], ROWS_AT_ONCE)
            for row in self._database.rows(
                _SQL["reported_ms"],
                gate=gate_name,
                since_ms=min(batch.created_time_ms for batch in own),
                batches=keys,
            )
        }


def _values(sample: RateSample, batch_cost: str | None, interval_ms: int | None) -> dict[str, Any]:
    return asdict(sample) | {
        "new_rate": sample.rate_per_s,
        "new_cost": batch_cost,
        "new_interval_ms": interval_ms,
    }


def _refuse_no_rate(sample: RateSample) -> None:
    new = sample.rate_per_s
    if new is not None and not (math.isfinite(new) and new > 0):
        raise LedgerError(
            f"The rate of gate {sample.gate!r} cannot be {new}; its estimator must return a "
            "positive number of records per second, or None."
        )


class SinkOutageStore(Store):
    """Sink outages during which gates hold a batch, at most one outage per gate."""

    def get(self, gate_name: str) -> SinkOutage | None:
        """Return the outage of a gate's sink; None if no outage is known."""
        return SinkOutage.from_text(self._database.scalar(_SQL["outage"], gate=gate_name))

    def keep(self, gate_name: str, outage: SinkOutage) -> None:
        """Store a gate's sink outage after a failed run; delete an operator's retry request."""
        text = storable(outage.to_text())
        self._database.change(_SQL["keep_outage"], {"gate": gate_name, "text": text})

    def end(self, gate_name: str, *, by_law: bool = False) -> float | None:
        """End a gate's sink outage; return the new rate (records/s), or None if unchanged.

        Args:
            gate_name: Name of the gate.
            by_law: Whether the gate's law computes a new rate.
        """

        # The new rate and the end of the outage are stored in one transaction. The planner runs in
        # another process, and must apply the rate even after a crash of this process.
        def end(connection: Connection) -> float | None:
            gone = execute(connection, _SQL["end_outage"], {"gate": gate_name}).one_or_none()
            if not by_law or gone is None or gone.rate_per_s is None:
                return None
            new_rate = rate_after_outage(gone.estimator, gone.rate_per_s)
            execute(connection, _SQL["go_on_at"], {"gate": gate_name, "new_rate": new_rate})
            return new_rate

        return self._database.write(end)

    def is_asked(self, gate_name: str) -> bool:
        """Return whether an operator has asked to run the held batch at once."""
        return bool(self._database.scalar(_SQL["is_asked"], gate=gate_name))
