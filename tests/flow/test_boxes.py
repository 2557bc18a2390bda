"""What waits to be said, what has come, and what is warned of."""

import threading

import pytest
from tests.flow.samples import pressing, state_of_stage

from headrace.flow.signals.stage_signals import MAX_WARNINGS, Inbox, Outbox, WarnOnce


def test_of_each_pair_and_of_the_state_only_the_newest_waits() -> None:
    outbox = Outbox()
    for sequence in range(1_000):
        for receiver in ("a", "x"):
            outbox.put(pressing(sequence=sequence, receiver=receiver), 0)
        outbox.put(state_of_stage("b", queue_bytes=sequence), 0)
    assert outbox.due(0) == [
        pressing(sequence=999, receiver="a"),
        pressing(sequence=999, receiver="x"),
        state_of_stage("b", queue_bytes=999),
    ]


def test_what_is_delivered_is_not_due_until_it_is_to_be_said_again() -> None:
    outbox = Outbox()
    assertion = pressing()
    outbox.put(assertion, 0)
    outbox.delivered(assertion)
    assert outbox.due(0) == []
    outbox.resend()
    assert outbox.due(0) == [assertion]


def test_what_came_while_something_older_was_delivered_is_still_due() -> None:
    outbox = Outbox()
    old, new = pressing(sequence=1), pressing(sequence=2)
    outbox.put(old, 0)
    outbox.put(new, 0)
    outbox.delivered(old)
    assert outbox.due(0) == [new]


def test_what_could_not_be_delivered_within_its_lease_is_dropped() -> None:
    outbox = Outbox()
    outbox.put(pressing(lease_ms=1_000), 5.0)
    assert outbox.due(5.999) == [pressing(lease_ms=1_000)]
    assert outbox.due(6.0) == []
    outbox.resend()
    assert outbox.due(5.0) == [], "it is gone for good"


def test_what_is_found_again_and_again_comes_once() -> None:
    inbox = Inbox()
    for _ in range(3):
        inbox.put(pressing(sequence=1))
    assert inbox.take(0) == [pressing(sequence=1)]
    inbox.put(pressing(sequence=1))
    assert inbox.take(0) == []
    inbox.put(pressing(sequence=2))
    assert inbox.take(0) == [pressing(sequence=2)]


def test_of_each_sender_the_newest_waits_to_be_taken() -> None:
    inbox = Inbox()
    for sequence in range(100):
        inbox.put(pressing(sequence=sequence, sender="b"))
        inbox.put(pressing(sequence=sequence, sender="c"))
    assert inbox.take(0) == [
        pressing(sequence=99, sender="b"),
        pressing(sequence=99, sender="c"),
    ]


@pytest.mark.parametrize("ends_by_closing", [True, False])
def test_whoever_waits_is_woken_by_what_comes_and_by_the_end(ends_by_closing: bool) -> None:
    inbox = Inbox()
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(inbox.take(60)))
    waiting.start()
    if ends_by_closing:
        inbox.close()
    else:
        inbox.put(pressing())
    waiting.join(30)
    assert taken == [[] if ends_by_closing else [pressing()]]


def test_a_warning_is_told_once_until_its_reason_clear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = WarnOnce()
    for _ in range(3):
        told.warn("b", "b is wrong")
    assert caplog.messages == ["b is wrong"]
    told.clear("b")
    told.warn("b", "b is wrong again")
    assert caplog.messages[1:] == ["b is wrong again"]


def test_whoever_makes_up_reasons_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told = WarnOnce()
    for number in range(10 * MAX_WARNINGS):
        told.warn(str(number), f"{number} is wrong")
    assert len(caplog.messages) == MAX_WARNINGS + 2
    assert caplog.messages[-1] == "There is more of the kind, which is not logged."
