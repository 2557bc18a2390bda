from collections.abc import Iterator, Sequence

import pytest
from tests.operate.metrics.fleets import done

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import GateMoment
from headrace.operate.metrics.families import Totals
from headrace.testing import ManualClock, temporary_ledger


@pytest.fixture
def in_memory(clock: ManualClock) -> Iterator[Ledger]:
    """A ledger with the gate ``orders``."""
    with temporary_ledger(clock) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        yield ledger


def successes(totals: Totals, ledger: Ledger, gates: Sequence[GateMoment]) -> float:
    """Return the batches that have succeeded, of gates as they were a moment ago."""
    families = totals.collect(ledger, gates, ledger.moments.open_batches())
    samples = next(family.samples for family in families if family.name.endswith("_batches"))
    return next(sample.value for sample in samples if sample.labels["status"] == "success")


def test_a_total_does_not_fall_while_batches_are_pruned_between_two_questions(
    in_memory: Ledger, clock: ManualClock
) -> None:
    ledger, totals, ends_ms = in_memory, Totals(), []
    for number in range(6):
        done(ledger, clock, number * 10, 10, 100)
        ends_ms.append(clock())
    before = successes(totals, ledger, ledger.gates.all_now())
    assert before == 6
    assert ledger.history.prune(ends_ms[2])[0] == 2
    gates = ledger.gates.all_now()
    assert ledger.history.prune(ends_ms[4])[0] == 2
    assert successes(totals, ledger, gates) == before
    assert successes(totals, ledger, ledger.gates.all_now()) == before
