"""What a client gives seldom, and no broker gives on demand: scripted."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as Position
from tests.kafka.reads import offsets, reader_config

from headrace.control.ranges import OffsetRange
from headrace.errors import BrokerError, DataLossError, SourceError
from headrace.kafka import consumers, reader
from headrace.kafka.reader import read_ranges

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

    def incremental_unassign(self, _partitions: list[Position]) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        pass


def script(
    monkeypatch: pytest.MonkeyPatch,
    *steps: list[Message] | KafkaError,
    known: tuple[int, ...] = (),
) -> None:
    consumers.close_idle_consumers()
    monkeypatch.setattr(consumers, "Consumer", ScriptedConsumer(list(steps), list(known)))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._BAD_MSG, SourceError, r"t-0 \[3, 9\) cannot be read, at offset 5: damaged"),
        (KafkaError._BAD_COMPRESSION, SourceError, "cannot be read, at offset 5: damaged"),
        (KafkaError._NOT_IMPLEMENTED, SourceError, "cannot be read, at offset 5: damaged"),
    ],
)
def test_records_that_cannot_be_read_stop_the_read_though_the_client_goes_on(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[SourceError], words: str
) -> None:
    script(monkeypatch, [record(3), record(4), event(code, "damaged", offset=5), record(8)])
    with pytest.raises(kind, match=words):
        list(read_ranges(reader_config("unused:1", fail_on_data_loss=False), [RANGE]))


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._FATAL])
def test_a_refusal_among_the_records_stops_the_read(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    script(monkeypatch, [record(3), event(code, "not for you")])
    with pytest.raises(BrokerError, match="refused to serve the read: not for you"):
        offsets(reader_config("unused:1", fail_on_data_loss=False), RANGE)


def test_damage_beyond_the_range_does_not_concern_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [record(3), event(KafkaError._BAD_MSG, offset=9)], [record(8)])
    assert offsets(reader_config("unused:1"), RANGE) == [3, 8]


def test_a_refusal_is_told_long_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SILENCE_S", 0.01)
    script(monkeypatch, KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(BrokerError, match="refused to serve the read: wrong password"):
        offsets(reader_config("unused:1", timeout_ms=10**9), RANGE)


def test_a_refusal_after_which_records_come_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        monkeypatch,
        KafkaError(KafkaError._AUTHENTICATION, "expired"),
        [record(3)],
        [],
        [record(8)],
        known=(1,),
    )
    batches = read_ranges(reader_config("unused:1"), [RANGE])
    assert next(batches).column("offset").to_pylist() == [3]
    monkeypatch.setattr(reader, "_SILENCE_S", -1.0)  # so that the next silence is looked into
    assert next(batches).column("offset").to_pylist() == [8]


def test_the_last_error_is_the_reason_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    down = KafkaError(KafkaError._TRANSPORT, "connection refused")
    script(monkeypatch, [record(3)], down, known=(1,))
    # Of a log that no broker tells of, nothing is called lost.
    monkeypatch.setattr(reader, "find_log", lambda *_: None)
    with pytest.raises(BrokerError, match=r"t-0 \[4, 9\) for 1 ms .*: connection refused"):
        offsets(reader_config("unused:1", timeout_ms=1, fail_on_data_loss=False), RANGE)


def test_records_that_come_twice_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        monkeypatch,
        [record(3), record(4)],
        [record(3), record(4), record(5)],
        [record(5), record(8), record(9)],
    )
    assert offsets(reader_config("unused:1"), RANGE) == [3, 4, 5, 8]


def test_the_time_between_two_batches_is_not_the_brokers_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = time.monotonic()
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: clock))
    script(monkeypatch, [record(3)], [], [record(4)], [], [record(8)])
    found = []
    for batch in read_ranges(reader_config("unused:1", timeout_ms=1000), [RANGE]):
        found += batch.column("offset").to_pylist()
        clock += 3600
    assert found == [3, 4, 8]


def test_a_partition_is_missing_when_it_is_so_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may be late to hear of a new one."""
    monkeypatch.setattr(reader, "_SILENCE_S", -1.0)
    config = reader_config("unused:1", fail_on_data_loss=True)
    script(monkeypatch, [], [record(3)], [], [record(8)], known=(0, 0))
    assert offsets(config, RANGE) == [3, 8]
    script(monkeypatch, [], [], [record(8)], known=(0, 1))
    assert offsets(config, RANGE) == [8]
    script(monkeypatch, [record(3)], known=(0, 0))
    with pytest.raises(DataLossError, match=r"t-0 \[4, 9\) are gone .*does not exist"):
        offsets(config, RANGE)


def test_the_end_of_a_log_beyond_the_range_ends_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [record(3), event(KafkaError._PARTITION_EOF, offset=9)])
    assert offsets(reader_config("unused:1"), RANGE) == [3]
