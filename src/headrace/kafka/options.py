"""The options of ``format("headrace-kafka")``: the native connector's, and Headrace's own."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.kafka.client_config import client_config
from headrace.kafka.consumers import ClientConfig
from headrace.kafka.subscription import Subscription, parse_subscription
from headrace.source.bounds import Edge
from headrace.source.options import (
    SHARED,
    SourceOptions,
    exactly_named,
    parse_source_options,
    whole,
)

FORMAT: Final = "headrace-kafka"

_STREAM_ONLY: Final = ("headrace.commit.group",)
_BOTH: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "headrace.channel",
)
OPTIONS: Final = (*_BOTH, *_STREAM_ONLY, *SHARED)
"""Every option but ``kafka.*``, as documented."""

_CLIENT_PREFIX: Final = "kafka."


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of one source, checked.

    Attributes:
        shared: those that every source has.
        client: librdkafka's settings; never shown, for they hold passwords.
        bootstrap_servers: ``kafka.bootstrap.servers``.
        subscription: which topics or partitions.
        poll_timeout_ms: how long a task waits for a record (ms).
        fetch_offset_retries: how often the planner repeats a failed question.
        fetch_offset_retry_interval_ms: the time between (ms).
        commit_group: the consumer group that is told of processed offsets; None for none.
        channel: the URL of the ledger of the stages that write the topics, of which each batch is
            read once; never shown. None to read every record.
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


def parse_options(options: Mapping[str, str], *, streaming: bool) -> KafkaOptions:
    """Check every option, each for itself and all against each other.

    Args:
        options: by name, in any case, as Spark hands them to a source.
        streaming: whether for a stream or for a bounded read.

    Raises:
        OptionError: an option is unknown, of the wrong type, out of range or contradicts another;
            names it, its value and what is allowed.
    """
    of_client = [name for name in options if name.lower().startswith(_CLIENT_PREFIX)]
    given = exactly_named(
        FORMAT,
        {name: value for name, value in options.items() if name not in of_client},
        streaming=streaming,
        both=_BOTH,
        stream_only=_STREAM_ONLY,
    )
    client = client_config(
        {name.lower().removeprefix(_CLIENT_PREFIX): options[name] for name in of_client}
    )
    prefix = given.get("groupIdPrefix", "headrace-kafka")
    client.setdefault("group.id", f"{prefix}-{uuid.uuid4()}")
    return KafkaOptions(
        shared=parse_source_options(given, streaming=streaming, stream_begins=Edge.LATEST),
        client=client,
        bootstrap_servers=str(client["bootstrap.servers"]),
        subscription=parse_subscription(given),
        poll_timeout_ms=whole(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
        fetch_offset_retries=whole(given, "fetchOffset.numRetries", at_least=0, default=3),
        fetch_offset_retry_interval_ms=whole(
            given, "fetchOffset.retryIntervalMs", at_least=0, default=1000
        ),
        commit_group=given.get("headrace.commit.group"),
        channel=given.get("headrace.channel"),
    )
