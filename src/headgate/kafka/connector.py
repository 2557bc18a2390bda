"""Kafka as a gate knows it."""

from collections.abc import Mapping
from typing import Final

from headgate.kafka.log import KafkaLog
from headgate.kafka.options import parse_options
from headgate.kafka.replay import replay_options
from headgate.kafka.source import KafkaSource
from headgate.source.connector import Connector


def _check(options: Mapping[str, str]) -> None:
    # Spark finds either only when the query runs, and wraps it in a traceback.
    KafkaLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _bounded_log(options: Mapping[str, str]) -> KafkaLog:
    return KafkaLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    given = {name.lower(): value for name, value in options.items()}
    return given["kafka.bootstrap.servers"]


KAFKA: Final = Connector("kafka", KafkaSource, _check, replay_options, _bounded_log, _servers)
