"""Events that a client gives seldom, and no broker gives on demand: scripted."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position
from tests.gate.kafka.reads import offsets, reader_config

from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError, DataLossError, SourceError
from headrace.gate.kafka.consumers import MakeConsumer, close_idle_consumers
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges

RANGE = OffsetRange("t", 0, 3, 9)


def record(offset: int) -> Message:
    return Message("t", 0, offset, value=b"x", timestamp=(1, 0))


def event(code: int, text: str = "", offset: int = -1) -> Message:
    return Message("t", 0, offset, error=KafkaError(code, text))


class ScriptedConsumer:
    """Gives one step a call: messages, or nothing after it has told an error; then nothing."""

    def __init__(self, steps: list[list[Message] | KafkaError], known: list[int]) -> None:
        self._steps = steps
        self._known = known  # how many partitions a broker says the topic has, each time
        self._on_error: Callable[[KafkaError], None]

    def __call__(self, config: dict[str, Any], logger: object) -> "ScriptedConsumer":
        assert logger is not None
        self._on_error = config["error_cb"]
        return self

    def assign(self, partitions: list[Position]) -> None:
        assert [(p.topic, p.partition, p.offset) for p in partitions] == [("t", 0, 3)]

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        step = self._steps.pop(0) if self._steps else []
        if isinstance(step, KafkaError):
            self._on_error(step)
            return []
        return step

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        assert timeout > 0
        described = SimpleNamespace(error=None, partitions=range(self._known.pop(0)))
        return SimpleNamespace(topics={topic: described})

    def get_watermark_offsets(self, _partition: Position, timeout: float) -> tuple[int, int]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def incremental_unassign(self, _partitions: list[Position]) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        pass


def script(
    *steps: list[Message] | KafkaError,
    known: tuple[int, ...] = (),
    fail: bool = True,
    timeout_ms: int = 20_000,
    silence_s: float = 3.0,
    clock: Callable[[], float] = time.monotonic,
) -> ReaderConfig:
    """A reader of what a scripted consumer gives."""
    close_idle_consumers()
    config = reader_config("unused:1", fail_on_data_loss=fail, timeout_ms=timeout_ms)
    made = cast("MakeConsumer", ScriptedConsumer(list(steps), list(known)))
    return replace(config, silence_s=silence_s, clock=clock, make_consumer=made)


@pytest.mark.parametrize(
    "code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED]
)
def test_records_that_cannot_be_read_stop_the_read_though_the_client_goes_on(code: int) -> None:
    step = [record(3), record(4), event(code, "damaged", offset=5), record(8)]
    with pytest.raises(SourceError, match=r"t-0 \[3, 9\) cannot be read, at offset 5: damaged"):
        offsets(script(step, fail=False), RANGE)


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._FATAL])
def test_a_refusal_among_the_records_stops_the_read(code: int) -> None:
    with pytest.raises(BrokerError, match="refused to serve the read: not for you"):
        offsets(script([record(3), event(code, "not for you")], fail=False), RANGE)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # Damage beyond the range does not concern it.
        ([[record(3), event(KafkaError._BAD_MSG, offset=9)], [record(8)]], [3, 8]),
        # Records that come twice are given once.
        (
            [
                [record(3), record(4)],
                [record(3), record(4), record(5)],
                [record(5), record(8), record(9)],
            ],
            [3, 4, 5, 8],
        ),
        # The end of a log beyond the range ends the range.
        ([[record(3), event(KafkaError._PARTITION_EOF, offset=9)]], [3]),
    ],
)
def test_a_range_has_its_records_once(steps: list[list[Message]], expected: list[int]) -> None:
    assert offsets(script(*steps), RANGE) == expected


def test_a_refusal_is_raised_long_before_the_timeout() -> None:
    refusal = KafkaError(KafkaError._AUTHENTICATION, "wrong password")
    with pytest.raises(BrokerError, match="refused to serve the read: wrong password"):
        offsets(script(refusal, timeout_ms=10**9, silence_s=0.01), RANGE)


class Clock:
    """Moves by a step at each look."""

    now_s = 0.0
    step_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_a_refusal_after_which_records_come_is_over() -> None:
    clock = Clock()
    expired = KafkaError(KafkaError._AUTHENTICATION, "expired")
    config = script(expired, [record(3)], [], [record(8)], known=(1,), clock=clock)
    batches = read_ranges(config, [RANGE])
    assert next(batches).column("offset").to_pylist() == [3]
    clock.step_s = 5.0  # so that the next silence is looked into
    assert next(batches).column("offset").to_pylist() == [8]


def test_the_last_error_is_the_reason_where_nothing_comes() -> None:
    """No record is called lost of a log that no broker describes."""
    down = KafkaError(KafkaError._TRANSPORT, "connection refused")
    config = script([record(3)], down, known=(1,), fail=False, timeout_ms=1)
    with pytest.raises(BrokerError, match=r"t-0 \[4, 9\) for 1 ms .*: connection refused"):
        offsets(config, RANGE)


def test_the_time_between_two_batches_is_not_the_brokers_silence() -> None:
    clock = Clock()
    steps: list[list[Message]] = [[record(3)], [], [record(4)], [], [record(8)]]
    found = []
    for batch in read_ranges(script(*steps, timeout_ms=1000, clock=clock), [RANGE]):
        found += batch.column("offset").to_pylist()
        clock.now_s += 3600
    assert found == [3, 4, 8]


def test_a_partition_is_missing_when_it_is_so_twice() -> None:
    """A broker may be late to hear of a new one."""
    steps: tuple[list[Message], ...] = ([], [record(3)], [], [record(8)])
    assert offsets(script(*steps, known=(0, 0), silence_s=-1.0), RANGE) == [3, 8]
    assert offsets(script([], [], [record(8)], known=(0, 1), silence_s=-1.0), RANGE) == [8]
    with pytest.raises(DataLossError, match=r"t-0 \[4, 9\) are gone .*does not exist"):
        offsets(script([record(3)], known=(0, 0), silence_s=-1.0), RANGE)
