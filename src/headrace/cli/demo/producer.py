"""Send the demo's orders: a backlog at once, then a steady stream from a thread of its own."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from headrace.cli.demo.orders import OrderBook
from headrace.cli.demo.senders import Sender

TICK_S: Final = 0.05
CATCH_UP_S: Final = 1


class OrderProducer:
    """Sends the orders of a book, each acknowledged.

    Args:
        sender: Where to.
        book: What.
    """

    def __init__(self, sender: Sender, book: OrderBook) -> None:
        self._sender = sender
        self._book = book
        self._enough = threading.Event()
        self._thread = ThreadPoolExecutor(1, "orders")
        self._running: Future[None] | None = None

    @property
    def produced(self) -> int:
        """Orders handed over so far; after :meth:`stop` they are all where they are read from."""
        return self._book.written

    def fill(self, orders: int) -> None:
        """Send so many at once, and wait until all are acknowledged.

        Raises:
            HeadraceError: They were not all taken.
        """
        for _ in range(orders):
            self._send()
        self._sender.flush()

    def start(self, orders_per_s: float) -> None:
        """Go on sending, at a steady rate if it is let."""
        self._running = self._thread.submit(self._stream, orders_per_s)

    def check(self) -> None:
        """See that it goes on.

        Raises:
            HeadraceError: It does not.
        """
        if self._running is not None and self._running.done():
            self._running.result()

    def stop(self) -> None:
        """Stop sending, and wait until everything is acknowledged; again is harmless.

        Raises:
            HeadraceError: Not all of it was taken.
        """
        self._enough.set()
        if self._running is not None:
            self._running.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._enough.set()
        self._thread.shutdown()
        self._sender.close()

    def _stream(self, orders_per_s: float) -> None:
        last_s = time.monotonic()
        while not self._enough.wait(TICK_S):
            # What pressure has kept from being sent for long is not sent later all at once.
            last_s = max(last_s, time.monotonic() - CATCH_UP_S)
            due = int((time.monotonic() - last_s) * orders_per_s)
            for _ in range(due):
                self._send()
            self._sender.flush()
            last_s += due / orders_per_s

    def _send(self) -> None:
        order, partition = self._book.write(time.time_ns() // 1_000_000)
        self._sender.send(order, partition)
