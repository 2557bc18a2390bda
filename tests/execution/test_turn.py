"""The turn of one caller of a handler, and how long it waited for it."""

import threading
from typing import cast

from headrace.execution.gate_state import Turn


class Held:
    """A lock that somebody else has for some seconds, and the clock that goes on meanwhile."""

    now_s = 0.0
    for_s = 2.5

    def acquire(self, blocking: bool = True) -> bool:
        if not blocking:
            return False
        self.now_s += self.for_s
        return True

    def release(self) -> None:
        self.now_s += 100.0


def test_a_caller_knows_how_long_it_waited_for_its_turns_since_it_last_asked() -> None:
    held = Held()
    turn = Turn(cast(threading.Lock, held), lambda: held.now_s)
    with turn:
        held.now_s += 50.0
    with turn:
        pass
    assert turn.take_waited_ms() == 5_000
    assert turn.take_waited_ms() == 0


def test_a_turn_says_whether_it_was_free() -> None:
    with Turn(threading.Lock()) as was_free:
        assert was_free
    with Turn(cast(threading.Lock, Held()), lambda: 0.0) as was_free:
        assert not was_free
