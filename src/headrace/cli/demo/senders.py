"""How the demo's orders leave: to a Kafka topic, or over HTTP to a receiver."""

import http.client
import time
from typing import Final, Protocol

from confluent_kafka import KafkaError, Message, Producer

from headrace.errors import BrokerError, ReceiverError

FLUSH_S: Final = 30
IDLE_S: Final = 3
LINES: Final = 500
"""Orders in one request."""

_TAKEN, _LATER, _AWAY = 200, 429, 503


class Sender(Protocol):
    """Takes orders out of this process."""

    def send(self, order: bytes, partition: int) -> None:
        """Hand over an order, and wait if too many are under way.

        Raises:
            HeadraceError: One before it was refused.
        """

    def flush(self) -> None:
        """Return when everything is there.

        Raises:
            HeadraceError: Something was refused.
        """

    def close(self) -> None:
        """Let go of the connection; what was not flushed may be lost."""


class KafkaSender:
    """Produces into a topic, each order acknowledged by the broker.

    Args:
        servers: The brokers.
        topic: An existing topic.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        self._refused: list[KafkaError] = []

    def send(self, order: bytes, partition: int) -> None:
        """See `Sender.send`."""
        self._raise_refusals()
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

    def flush(self) -> None:
        """See `Sender.flush`."""
        waiting = self._producer.flush(FLUSH_S)
        self._raise_refusals()
        if waiting:
            raise BrokerError(
                f"{waiting} orders did not reach topic {self._topic} within {FLUSH_S} s; "
                "see that its brokers run."
            )

    def close(self) -> None:
        """See `Sender.close`."""
        self._producer.purge()

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error)

    def _raise_refusals(self) -> None:
        if self._refused:
            raise BrokerError(
                f"Topic {self._topic} did not take an order: {self._refused[0].str()}; "
                "see that its brokers run and let this user write to it."
            )


class HttpSender:
    """Posts lines of JSON to a receiver, and waits when that says later.

    Args:
        address: ``host:port`` of the receiver.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = http.client.HTTPConnection(address, timeout=FLUSH_S)
        self._answered_s = time.monotonic()
        self._lines: list[bytes] = []

    def send(self, order: bytes, partition: int) -> None:
        """See `Sender.send`; a receiver has one lane, whatever the partition."""
        del partition
        self._lines.append(order)
        if len(self._lines) == LINES:
            self.flush()

    def flush(self) -> None:
        """See `Sender.flush`."""
        if not self._lines:
            return
        body = b"\n".join(self._lines)
        while (status := self._post(body)) != _TAKEN:
            if status not in {_LATER, _AWAY}:
                raise ReceiverError(
                    f"The receiver at {self._address} refused {len(self._lines)} orders with"
                    f" status {status}; see what it logs."
                )
        self._lines = []

    def close(self) -> None:
        """See `Sender.close`."""
        self._connection.close()

    def _post(self, body: bytes) -> int:
        """The answer's status; one that says later is waited for."""
        if time.monotonic() - self._answered_s > IDLE_S:
            self._connection.close()  # before the receiver does, which makes room for others
        try:
            headers = {"Content-Type": "application/x-ndjson"}
            self._connection.request("POST", "/records", body, headers)
            answer = self._connection.getresponse()
            answer.read()
            self._answered_s = time.monotonic()
        except (OSError, http.client.HTTPException) as error:
            raise ReceiverError(
                f"The receiver at {self._address} did not answer: {error}; see that it runs."
            ) from error
        if answer.status in {_LATER, _AWAY}:
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        return answer.status
