"""All gates at one look, and the history of one, on both databases."""

from dataclasses import replace

from tests.gate.ledger.samples import a_sample, batch_number, declare_clicks

from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import Unresolved


def test_the_revision_changes_when_a_gate_does_and_only_there(ledger: Ledger) -> None:
    declare_clicks(ledger)

    before = ledger.moments.revision()

    def changed() -> set[str]:
        nonlocal before
        now = ledger.moments.revision()
        different = {
            name
            for name, seen in now.gates.items()
            if before.gates.get(name) != seen
            or before.unresolved.get(name) != now.unresolved.get(name)
        }
        before = now
        return different

    assert changed() == set()
    key = ledger.batches.begin(batch_number(0)).batch_key
    assert changed() == {"orders"}
    ledger.batches.fail(key, ValueError("x"))
    assert changed() == {"orders"}
    assert before.unresolved == {"orders": Unresolved(failed=1)}
    ledger.rates.report(key, 0, 1, a_sample(5, batch_key=key))
    assert changed() == {"orders"}
    ledger.operator_limits.pause("clicks", "ada", "x")
    assert changed() == {"clicks"}
    assert ledger.operator_limits.history("clicks")[0].kind is OperatorActionKind.PAUSE


def test_the_newest_batches_of_several_gates(ledger: Ledger) -> None:
    declare_clicks(ledger)
    keys = []
    for number in range(4):
        keys.append(ledger.batches.begin(batch_number(number)).batch_key)
        ledger.batches.succeed(keys[-1])
    found = ledger.moments.newest_batches(["orders", "clicks"], 3)
    assert [each.batch_key for each in found["orders"][0]] == keys[:0:-1]
    assert "clicks" not in found
    assert ledger.moments.newest_batches(None, 3) == found


def test_a_series_has_a_point_for_each_stretch_with_batches(ledger: Ledger) -> None:
    for number in range(6):
        batch = replace(batch_number(number), lag=100 * number)
        key = ledger.batches.begin(batch).batch_key
        if number == 4:
            ledger.batches.fail(key, ValueError("x"))
        else:
            ledger.batches.succeed(key, records=7)
    oldest_ms = ledger.moments.oldest_ms("orders")
    assert oldest_ms is not None
    until_ms = oldest_ms + 3_600_000
    each = ledger.moments.series("orders", oldest_ms, until_ms, 1)
    assert sum(point.batches for point in each) == 6
    assert [point.lag for point in each][-1] == 500
    (whole,) = ledger.moments.series("orders", 0, until_ms, 10**15)
    assert (whole.batches, whole.lag, whole.failed, whole.records) == (6, 500, 1, 45)
    assert ledger.moments.series("orders", until_ms, until_ms + 1, 1) == ()
    assert ledger.moments.oldest_ms("clicks") is None


def test_lists_of_all_gates_have_more_than_one_statement_can_combine(ledger: Ledger) -> None:
    for number in range(501):
        name = f"gate {number}"
        ledger.gates.declare(name, interval_ms=1_000, source="kafka", estimator="pid")
    last = ledger.batches.begin(replace(batch_number(0), gate="gate 500"))
    assert [each.batch_key for each in ledger.batches.newest()] == [last.batch_key]
    assert ledger.dead_letters.oldest() == ()
