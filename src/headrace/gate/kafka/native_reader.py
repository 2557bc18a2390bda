"""Reading of Kafka by the native engine, if ``headrace-native`` is installed.

The native engine builds record batches without a Python object for each record. It uses the
librdkafka of confluent-kafka. The rules for events, losses and silences are those of `RangeRead`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final, cast

import pyarrow as pa
from confluent_kafka import KafkaError, cimpl

from headrace.core.native import ENGINE, Engine, native_engine
from headrace.core.ranges import TopicPartition
from headrace.errors import HeadraceError, SourceError
from headrace.gate.kafka.consumers import MakeConsumer, asking_consumer, find_missing
from headrace.gate.kafka.range_reader import POLL_S, RangeRead, ReaderConfig

_LOG: Final = logging.getLogger("headrace.kafka")
_POLL_MS: Final = int(POLL_S * 1000)
_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)  # For librdkafka's, as in confluent-kafka.


def range_read(engine: Engine) -> type[RangeRead]:
    """Return the reader of an engine; the Python engine's if the native one cannot be used."""
    return NativeRead if engine is Engine.NATIVE and _is_usable() else RangeRead


@cache  # and so one line in the log of a process
def _is_usable() -> bool:
    engine = native_engine()
    try:
        if engine is not None:
            engine.load_librdkafka(str(cimpl.__file__))
    except RuntimeError as error:  # Always on Windows, where confluent-kafka exports no functions.
        _LOG.warning("Kafka is read by the Python engine: %s.", error)
        return False
    return engine is not None


class NativeConsumer:
    """Consumer of the native engine, as `warm_consumer` keeps it."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger) -> None:
        settings = dict(config)
        self._on_error: Callable[[KafkaError], None] = settings.pop("error_cb")
        self._fetch_token: Any = settings.pop("oauth_cb", None)
        self._logger = logger
        texts = [(name, str(value)) for name, value in settings.items()]
        self._native: Any = native_engine()
        self._native = self.call("Reader", texts, self._fetch_token is not None)
        self.unassign, self.close = partial(self.call, "unassign"), partial(self.call, "close")

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the native engine. Raise `SourceError` if it fails."""
        try:
            return getattr(self._native, method)(*arguments)
        except RuntimeError as error:
            raise SourceError(
                f"The native engine cannot read Kafka ({error}); to read with the Python engine,"
                f" set the option {ENGINE} to {Engine.PYTHON}."
            ) from error

    def take(self) -> tuple[pa.RecordBatch | None, list[int], list[Any]]:
        """Return the next records or None, the positions and events; pass on the reports."""
        batch, positions, events, (errors, lines, is_token_wanted) = self.call("take", _POLL_MS)
        if is_token_wanted:
            self._set_token()
        for level, facility, line in lines:
            self._logger.log(_LEVELS[level], "%s %s", facility, line)
        for code, reason in errors:
            self._on_error(KafkaError(code, reason))
        return batch, positions, events

    def _set_token(self) -> None:
        try:
            token, expiry_s, principal, _ = self._fetch_token("")
            self.call("set_token", token, int(expiry_s * 1000), principal)
        except HeadraceError as error:  # The client asks again in ten seconds.
            self.call("fail_token", str(error))


class NativeRead(RangeRead):
    """A read by the native engine. Its positions are copied here, where the rules need them."""

    @classmethod
    def maker(cls, config: ReaderConfig) -> MakeConsumer:
        """Return the constructor of the consumer that reads."""
        return cast(MakeConsumer, NativeConsumer)

    def _begin(self) -> None:
        self._native, config = cast(NativeConsumer, self._consumer.kafka), self._config
        ranges = [(r.topic, r.partition, r.start, r.until) for r in self._ranges]
        self._native.call("begin", ranges, config.columns, config.batch_bytes, config.aborted)

    def _receive(self) -> pa.RecordBatch | None:
        batch, positions, events = self._native.take()
        self._next[:] = positions
        self._open = {slot for slot in self._open if self._next[slot] < self._until[slot]}
        for code, reason, topic, partition, offset in events:
            self._on_event((topic, partition), max(offset, 0), KafkaError(code, reason))
        return batch

    def _advance(self, slot: int, position: int) -> None:
        self._native.call("advance", slot, min(position, int(self._until[slot])))
        super()._advance(slot, position)

    def _close(self, slots: set[int]) -> None:
        self._open -= slots  # The native engine has stopped fetching.

    def _restart(self, slot: int) -> None:
        self._native.call("restart", slot)

    def _find_missing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition] | None:
        with asking_consumer(self._config.client, self._config.make_consumer) as consumer:
            return find_missing(consumer.kafka, partitions, self._config.request_s)
