"""Signals that wait to be delivered."""

from tests.flow.samples import a_signal, state_of_stage

from headrace.flow.stage_signals import Outbox


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
