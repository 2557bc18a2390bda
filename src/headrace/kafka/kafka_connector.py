"""Kafka as a gate uses it: checked, planned, and read once more."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.core.ranges import OffsetRange, nested
from headrace.kafka.client.option_values import PREFIX
from headrace.kafka.dead_letter_producer import DeadLetterTopic
from headrace.kafka.kafka_options import parse_options
from headrace.kafka.kafka_source import KafkaSource
from headrace.kafka.topic_log import KafkaLog
from headrace.source.connector import OF_A_GATE, Connector

_SERVERS: Final = "kafka.bootstrap.servers"
_SUBSCRIPTIONS: Final = frozenset({"subscribe", "subscribepattern", "assign"})

# Options of a stream for the connection to Kafka and for a record's columns; the ranges replace the
# options for the start and the size.
_KEPT_IN_REPLAYS: Final = frozenset(
    {
        "headrace.channel",
        "includeheaders",
        "groupidprefix",
        "minpartitions",
        "maxrecordsperpartition",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)


def _check(options: Mapping[str, str]) -> None:
    # Spark finds either only when the query runs, and wraps it in a traceback.
    KafkaLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The options of a bounded read of exactly these ranges, in which nothing may be gone."""
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() in _KEPT_IN_REPLAYS or name.lower().startswith(PREFIX)
    }
    starts = nested({r.topic_partition: r.start for r in ranges})
    ends = nested({r.topic_partition: r.until for r in ranges})
    partitions = {topic: sorted(map(int, offsets)) for topic, offsets in starts.items()}
    return {
        **kept,
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
    }


def _bounded_log(options: Mapping[str, str]) -> KafkaLog:
    return KafkaLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    return {name.lower(): value for name, value in options.items()}[_SERVERS]


def _complete(options: Mapping[str, str], servers: str | None) -> dict[str, str]:
    """The options, with the brokers they lack; checked as a stream's."""
    names = {name.lower() for name in options}
    complete = dict(options)
    if _SERVERS not in names and servers is not None:
        complete[_SERVERS] = servers
    subscription = {} if names & _SUBSCRIPTIONS else {"subscribe": "topic"}
    parse_options(OF_A_GATE | subscription | complete, streaming=True)
    return complete


KAFKA: Final = Connector(
    "kafka",
    KafkaSource,
    _check,
    _replay_options,
    _bounded_log,
    _servers,
    _complete,
    DeadLetterTopic,
)
