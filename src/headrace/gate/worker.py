"""Work that is done in its order in a thread of its own, so that nothing else waits for it."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger("headrace.gate")


class InOrder:
    """Does what it is given one after the other, in a thread that ends with the process.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._given: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._changing = threading.Lock()
        self._open = 0
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        """Have this done after all that was given before.

        Args:
            work: what; an exception of it is logged.
            wait_s: how long to wait for it (s). What something else is still before is not waited
                for.

        Returns:
            Whether it is done.
        """
        done = threading.Event()
        with self._changing:
            is_next = self._open == 0
            self._open += 1
        self._given.put((work, done))
        return done.wait(wait_s if is_next else 0)

    def _work(self) -> None:
        while True:
            work, done = self._given.get()
            try:
                work()
            except Exception:  # noqa: BLE001  (in a thread, where nobody else would hear of it)
                _LOG.exception("What a batch's report says could not be taken in.")
            with self._changing:
                self._open -= 1
            done.set()
