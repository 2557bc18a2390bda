"""What has come for a stage: of each sender the newest, each once."""

import threading

from headrace.control.pressure import PressureSignal


class Inbox:
    """Holds what has come until it is asked for; never more than one assertion of each sender.

    An assertion may be found again and again where it cannot be deleted: it comes once all the
    same. Its methods can be called from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last: dict[str, PressureSignal] = {}
        self._waiting: dict[str, PressureSignal] = {}
        self._is_closed = False

    def put(self, assertion: PressureSignal) -> None:
        """Take what was found, unless it is what was found there before."""
        with self._changed:
            if self._last.get(assertion.sender) != assertion:
                self._last[assertion.sender] = assertion
                self._waiting[assertion.sender] = assertion
                self._changed.notify_all()

    def take(self, wait_s: float) -> list[PressureSignal]:
        """What has come since the last call; waits if that is nothing."""
        with self._changed:
            self._changed.wait_for(self._has_reason, wait_s)
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def close(self) -> None:
        """End the waiting, now and from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_reason(self) -> bool:
        return self._is_closed or bool(self._waiting)
