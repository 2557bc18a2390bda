"""Fill the demo's topic: a backlog at once, then a steady stream from a thread of its own."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from confluent_kafka import KafkaError, Message, Producer

from headgate.cli.demo.orders import OrderBook
from headgate.errors import BrokerError

FLUSH_S: Final = 30
TICK_S: Final = 0.05


class OrderProducer:
    """Produces the orders of a book into a topic, each acknowledged by the broker.

    Args:
        servers: The brokers.
        topic: An existing topic.
        book: What to produce.
    """

    def __init__(self, servers: str, topic: str, book: OrderBook) -> None:
        self._topic = topic
        self._book = book
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        self._refused: list[KafkaError] = []
        self._enough = threading.Event()
        self._thread = ThreadPoolExecutor(1, "orders")
        self._running: Future[None] | None = None

    @property
    def produced(self) -> int:
        """Orders handed over so far; after :meth:`stop` the brokers have them all."""
        return self._book.written

    def fill(self, orders: int) -> None:
        """Produce so many at once, and wait until the brokers have them.

        Raises:
            BrokerError: They did not take them all.
        """
        for _ in range(orders):
            self._send()
        self._flush()

    def start(self, orders_per_s: float) -> None:
        """Go on producing at a steady rate."""
        self._running = self._thread.submit(self._stream, orders_per_s)

    def check(self) -> None:
        """See that it goes on.

        Raises:
            BrokerError: It does not.
        """
        if self._running is not None and self._running.done():
            self._running.result()

    def stop(self) -> None:
        """Stop producing, and wait until the brokers have everything; again is harmless.

        Raises:
            BrokerError: They did not take all of it.
        """
        self._enough.set()
        if self._running is not None:
            self._running.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._enough.set()
        self._thread.shutdown()

    def _stream(self, orders_per_s: float) -> None:
        began, sent = time.monotonic(), 0
        while not self._enough.wait(TICK_S):
            due = int((time.monotonic() - began) * orders_per_s)
            for _ in range(due - sent):
                self._send()
            sent = due
            self._raise_refusals()
        self._flush()

    def _send(self) -> None:
        order, partition = self._book.write(time.time_ns() // 1_000_000)
        while True:
            try:
                self._producer.produce(
                    self._topic, order, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error)

    def _flush(self) -> None:
        waiting = self._producer.flush(FLUSH_S)
        self._raise_refusals()
        if waiting:
            raise BrokerError(
                f"{waiting} orders did not reach topic {self._topic} within {FLUSH_S} s; "
                "see that its brokers run."
            )

    def _raise_refusals(self) -> None:
        if self._refused:
            raise BrokerError(
                f"Topic {self._topic} did not take an order: {self._refused[0].str()}; "
                "see that its brokers run and let this user write to it."
            )
