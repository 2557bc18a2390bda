"""Records that a gate has lost or skipped, and those that somebody has accepted."""

from collections import Counter
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.ledger.samples import a_batch, a_range
from tests.services.examples import examples
from tests.services.ledgers import new_ledger

from headrace.errors import OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import FindingKind, Missed, Verdict

MISSED = (FindingKind.LOST, FindingKind.SKIPPED)


def read(ledger: Ledger, start: int, until: int, checkpoint_id: str) -> None:
    batch = a_batch(a_range(start, until), checkpoint_id=checkpoint_id)
    named = tuple(replace(each, topic_id="ID") for each in batch.ranges)
    ledger.batches.succeed(ledger.batches.begin(replace(batch, ranges=named)).batch_key)


@pytest.fixture
def skipping(ledger: Ledger) -> Ledger:
    """Two checkpoints read [0, 30) and [40, 50)."""
    ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
    read(ledger, 0, 30, "first")
    read(ledger, 40, 50, "second")
    return ledger


def test_what_lies_between_two_checkpoints_is_skipped_until_somebody_accepts_it(
    skipping: Ledger,
) -> None:
    assert skipping.proofs.verify("orders").verdict is Verdict.SKIPPED
    assert skipping.proofs.missed("orders") == Missed(0, 10, (("ID", a_range(30, 40)),))
    assert skipping.proofs.all_missed().keys() == {"orders"}
    skipping.repairs.accept("orders", skipping.proofs.missed("orders"), 10, "ada", "begun anew")
    assert skipping.proofs.all_missed() == {}
    found = skipping.proofs.verify("orders")
    assert found.verdict is Verdict.PROVEN
    assert [each.accepted for each in found.findings] == ["begun anew (ada)"]
    (done,) = skipping.operator_limits.history(None)
    assert (done.kind, done.by, done.why, done.outcome) == (
        "accept",
        "ada",
        "begun anew",
        "10 accepted",
    )


@pytest.mark.parametrize(
    ("records", "by", "why"), [(9, "ada", "a"), (10, "", "a"), (10, "ada", " ")]
)
def test_what_is_accepted_is_what_was_shown_with_a_name_and_a_reason(
    skipping: Ledger, records: int, by: str, why: str
) -> None:
    with pytest.raises(OptionError):
        skipping.repairs.accept("orders", skipping.proofs.missed("orders"), records, by, why)
    assert skipping.proofs.missed("orders").offsets == 10


def test_what_is_missed_later_is_not_accepted_with_what_was_missed_before(skipping: Ledger) -> None:
    skipping.repairs.accept("orders", skipping.proofs.missed("orders"), 10, "ada", "begun anew")
    skipping.history.record_losses("orders", [a_range(50, 55)], {"orders": "ID"})
    read(skipping, 60, 70, "third")
    missed = skipping.proofs.missed("orders")
    assert (missed.lost, missed.skipped) == (5, 5)
    assert skipping.proofs.verify("orders").verdict is Verdict.SKIPPED


counts = st.integers(1, 5)
steps = st.lists(
    st.tuples(st.sampled_from(["read", "new", "lose", "accept"]), counts, counts), max_size=12
)


@given(steps)
@examples(20)
def test_it_is_what_a_proof_finds_whatever_was_read_lost_and_accepted(
    steps: list[tuple[str, int, int]],
) -> None:
    with TemporaryDirectory() as folder, new_ledger(f"sqlite:///{folder}/headrace.db") as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        at, run = 0, 0
        for what, far, count in steps:
            match what:
                case "read":
                    read(ledger, at, at + count, f"run-{run}")
                    at += count
                case "new":
                    run, at = run + 1, at + far
                case "lose":
                    gone = a_range(at, at + count)
                    ledger.history.record_losses("orders", [gone], {"orders": "ID"})
                    at += count
                case "accept":
                    ledger.repairs.accept(
                        "orders",
                        ledger.proofs.missed("orders"),
                        ledger.proofs.missed("orders").offsets,
                        "ada",
                        "why",
                    )
        found: Counter[FindingKind] = Counter()
        for each in ledger.proofs.verify("orders").findings:
            if each.kind in MISSED and each.accepted is None:
                found[each.kind] += each.offsets.count
        missed = ledger.proofs.missed("orders")
        assert (missed.lost, missed.skipped) == tuple(found[each] for each in MISSED)
        assert sum(offsets.count for _, offsets in missed.ranges) == missed.offsets


def test_a_gate_that_the_ledger_does_not_know_has_missed_nothing(ledger: Ledger) -> None:
    assert ledger.proofs.missed("nobody") == Missed()
    with pytest.raises(OptionError, match="has missed 0 offsets"):
        ledger.repairs.accept("nobody", ledger.proofs.missed("nobody"), 5, "ada", "why")
