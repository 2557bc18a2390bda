"""What waits to be delivered, and what is warned of."""

import pytest
from tests.flow.samples import a_signal, state_of_stage

from headrace.flow.signals.stage_signals import MAX_WARNINGS, Outbox, WarnOnce


def test_of_each_pair_and_of_the_state_only_the_newest_is_due_until_its_lease_is_over() -> None:
    outbox = Outbox()
    for sequence in range(100):
        for receiver in ("a", "x"):
            outbox.put(a_signal(sequence=sequence, receiver=receiver, lease_ms=1_000), 5.0)
        outbox.put(state_of_stage("b", queue_bytes=sequence), 5.0)
    newest = state_of_stage("b", queue_bytes=99)
    assert outbox.due(5.999) == [
        *(a_signal(sequence=99, receiver=receiver, lease_ms=1_000) for receiver in ("a", "x")),
        newest,
    ]
    assert outbox.due(6.0) == [newest]
    outbox.resend()
    assert outbox.due(5.0) == [newest], "what was dropped is gone for good"


def test_what_is_delivered_is_due_again_where_it_may_be_lost_and_what_replaced_it_is_due() -> None:
    outbox = Outbox()
    old, new = a_signal(sequence=1), a_signal(sequence=2)
    outbox.put(old, 0)
    outbox.delivered(old)
    assert outbox.due(0) == []
    outbox.resend()
    assert outbox.due(0) == [old]
    outbox.put(new, 0)
    outbox.delivered(old)
    assert outbox.due(0) == [new]


def test_a_warning_is_logged_once_until_its_reason_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = WarnOnce()
    for _ in range(3):
        warnings.warn("b", "b is wrong")
    assert caplog.messages == ["b is wrong"]
    warnings.clear("b")
    warnings.warn("b", "b is wrong again")
    assert caplog.messages[1:] == ["b is wrong again"]


def test_whoever_makes_up_reasons_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WarnOnce()
    for number in range(10 * MAX_WARNINGS):
        warnings.warn(str(number), f"{number} is wrong")
    assert len(caplog.messages) == MAX_WARNINGS + 2
    assert caplog.messages[-1] == "There is more of the kind, which is not logged."
