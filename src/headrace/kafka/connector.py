"""Kafka as a gate knows it."""

from collections.abc import Mapping
from typing import Final

from headrace.kafka.log import KafkaLog
from headrace.kafka.options import parse_options
from headrace.kafka.replay import replay_options
from headrace.kafka.source import KafkaSource
from headrace.source.connector import OF_A_GATE, Connector

_SERVERS: Final = "kafka.bootstrap.servers"
_WHAT_TO_READ: Final = frozenset({"subscribe", "subscribepattern", "assign"})


def _check(options: Mapping[str, str]) -> None:
    # Spark finds either only when the query runs, and wraps it in a traceback.
    KafkaLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _bounded_log(options: Mapping[str, str]) -> KafkaLog:
    return KafkaLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    given = {name.lower(): value for name, value in options.items()}
    return given[_SERVERS]


def _located(options: Mapping[str, str], servers: str | None) -> dict[str, str]:
    named = {name.lower() for name in options}
    complete = dict(options)
    if _SERVERS not in named and servers is not None:
        complete[_SERVERS] = servers
    rest = {} if named & _WHAT_TO_READ else {"subscribe": "topic"}
    parse_options(OF_A_GATE | rest | complete, streaming=True)
    return complete


KAFKA: Final = Connector(
    "kafka", KafkaSource, _check, replay_options, _bounded_log, _servers, _located
)
