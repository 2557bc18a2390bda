"""Options of ``format("headrace-kafka")``: the native connector's options and Headrace's own."""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.core.native import Engine, engine_of
from headrace.core.options import partitions_by_topic
from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.client.option_values import PREFIX, client_options
from headrace.gate.kafka.consumers import ClientConfig
from headrace.gate.kafka.topic_pattern import topic_pattern
from headrace.gate.source.read_bounds import Edge
from headrace.gate.source.source_options import (
    SHARED,
    SourceOptions,
    exactly_named,
    parse_source_options,
    whole,
)

FORMAT: Final = "headrace-kafka"

_LONGEST_SHOWN: Final = 80
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
# The brokers' own rule; they refuse any other name with "Invalid topic".
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")

_STREAM_ONLY: Final = ("headrace.commit.group",)
_BOTH: Final = (
    *_SUBSCRIPTIONS,
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "headrace.channel",
)
OPTIONS: Final = (*_BOTH, *_STREAM_ONLY, *SHARED)
"""Names of all documented options of the source, except ``kafka.*``."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics, a pattern of topics, or partitions that a source reads.

    ``option`` is the name of the option that sets them.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Parsed options of one source; the ``repr`` shows no secret.

    Attributes:
        poll_timeout_ms: Time without a record after which a task fails (ms).
        commit_group: Consumer group to which processed offsets are committed; None to commit
            nothing.
        engine: Engine that reads the records.
        channel: URL of the ledger of the stages that write the topics; the source skips the records
            of the stages' aborted attempts. None to read every record.
    """

    shared: SourceOptions
    client: ClientConfig = field(repr=False)
    bootstrap_servers: str
    subscription: Subscription
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    commit_group: str | None
    channel: str | None = field(repr=False)
    engine: Engine = Engine.NATIVE


def parse_options(options: Mapping[str, str], *, streaming: bool) -> KafkaOptions:
    """Parse the source's options. Raise `OptionError` for wrong or contradictory options."""
    raw = exactly_named(
        FORMAT,
        {name: value for name, value in options.items() if not name.lower().startswith(PREFIX)},
        streaming=streaming,
        both=_BOTH,
        stream_only=_STREAM_ONLY,
    )
    client = client_config(client_options(options))
    client.setdefault("group.id", f"{raw.get('groupIdPrefix', 'headrace-kafka')}-{uuid.uuid4()}")
    return KafkaOptions(
        shared=parse_source_options(raw, streaming=streaming, stream_begins=Edge.LATEST),
        client=client,
        bootstrap_servers=str(client["bootstrap.servers"]),
        subscription=parse_subscription(raw),
        poll_timeout_ms=whole(raw, "kafkaConsumer.pollTimeoutMs") or 120_000,
        fetch_offset_retries=whole(raw, "fetchOffset.numRetries", at_least=0, default=3),
        fetch_offset_retry_interval_ms=whole(
            raw, "fetchOffset.retryIntervalMs", at_least=0, default=1000
        ),
        commit_group=_commit_group(raw),
        channel=raw.get("headrace.channel"),
        engine=engine_of(raw),
    )


def _commit_group(raw: Mapping[str, str]) -> str | None:
    group = raw.get("headrace.commit.group")
    if group is not None and not group.strip():
        # A blank group makes librdkafka abort the process.
        raise OptionError(
            f"headrace.commit.group is {group!r}, which is not a valid name of a consumer group;"
            " give a name, or leave the option out."
        )
    return group


def parse_subscription(raw: Mapping[str, str]) -> Subscription:
    """Parse the option that is set: ``subscribe``, ``subscribePattern`` or ``assign``."""
    chosen = [name for name in _SUBSCRIPTIONS if name in raw]
    if len(chosen) != 1:
        who = f"{' and '.join(chosen)} say" if chosen else "Nothing says"
        raise OptionError(
            f"{who} which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign."
        )
    option, text = chosen[0], raw[chosen[0]]
    if option == "subscribe":
        topics = tuple(dict.fromkeys(name for t in text.split(",") if (name := t.strip())))
        if not topics:
            raise OptionError(f"subscribe is {text!r}; name one topic, or several with commas.")
        return Subscription(option, topics=_allowed(option, topics))
    if option == "assign":
        partitions = tuple(partitions_by_topic(option, text))
        _allowed(option, (tp.topic for tp in partitions))
        return Subscription(option, partitions=partitions)
    if not text.strip():
        raise OptionError("subscribePattern is empty; write a regular expression of topic names.")
    return Subscription(option, pattern=topic_pattern(text))


def _allowed(option: str, topics: Iterable[str]) -> tuple[str, ...]:
    names = tuple(topics)
    for name in names:
        if not _TOPIC_NAME.fullmatch(name):
            shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
            raise OptionError(
                f"{option} names the topic {shown!r}, which is not a name that Kafka allows; it has"
                " 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is neither '.'"
                " nor '..'."
            )
    return names
