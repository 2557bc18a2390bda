"""Attempts of stages to write a batch into a topic: readable when finished, skipped when aborted.

Each record names the attempt that produced it in a header; the ledger has the attempt's outcome
(`headrace.gate.ledger.flows`). Records without the header come from other producers, and are read.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.core.ranges import OffsetRange, Positions
from headrace.errors import SourceError
from headrace.gate.kafka.producing import ProducedRecord, produce_all
from headrace.gate.source.log import Topic

if TYPE_CHECKING:
    from headrace.gate.ledger.ledger import Ledger

HEADER: Final = "headrace-batch"
"""Header of the records that a stage has written; its value comes from `tag`."""


def tag(key: str, attempt: str) -> str:
    """Return the header's value for an attempt to write the batch of this key."""
    return f"{key}/{attempt}"


def known_id(name: str, topic: Topic) -> str:
    """Return the topic's id, by which the ledger identifies the topic.

    SourceError is raised for brokers before 2.8, which have no ids.
    """
    if topic.topic_id is None:
        raise SourceError(
            f"The brokers give the topic {name!r} no id, as those before 2.8 do not, so it cannot"
            " be a channel; update them, or link the stages by a journal."
        )
    return topic.topic_id


def produce(
    client: Mapping[str, Any], topic: str, tag: str, batches: Iterable[pa.RecordBatch]
) -> int:
    """Produce the records of an attempt, none of them twice; return their number.

    ``client`` are settings from `client_config`, and ``batches`` have the columns key and value
    (binary) and headers. A record goes to the same partition as with Java's client.

    Raises:
        BrokerError: The brokers refused a record; other records may be in the topic.
    """
    settings = {
        **client,
        "enable.idempotence": True,
        "compression.type": client.get("compression.type", "lz4"),
    }
    return produce_all(
        settings,
        (
            ProducedRecord(topic, key, value, _marked(tag, headers))
            for batch in batches
            for key, value, headers in zip(
                *(batch.column(name).to_pylist() for name in ("key", "value", "headers")),
                strict=True,
            )
        ),
    )


def _marked(tag: str, headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    # A record that was read from another channel still has that channel's header.
    own = [(header["key"], header["value"]) for header in headers or () if header["key"] != HEADER]
    return [(HEADER, tag.encode()), *own]


class Attempts:
    """Attempts to write into topics, read from a ledger that is opened at the first request."""

    def __init__(self, ledger_url: str) -> None:
        self._url = ledger_url
        self._opened: Ledger | None = None

    def readable_until(self, topic_ids: Mapping[str, str], latest: Positions) -> Positions:
        """Return the first offset in each partition of an unfinished attempt.

        ``latest`` must be older than this call: an attempt that begins later starts behind it.
        """
        ends = dict(latest)
        for name, topic_id in topic_ids.items():
            for starts in self._ledger().outputs.unfinished(topic_id):
                for tp in latest:
                    if tp.topic == name:
                        ends[tp] = min(ends[tp], starts.get(tp.partition, 0))
        return ends

    def aborted(
        self, topic_ids: Mapping[str, str], ranges: Iterable[OffsetRange]
    ) -> tuple[str, ...]:
        """Return the tags of the aborted attempts that may have records in these ranges."""
        tags = []
        for name, topic_id in topic_ids.items():
            untils = [(r.partition, r.until) for r in ranges if r.topic == name]
            for key, attempt, starts in self._ledger().outputs.aborted(topic_id):
                if any(starts.get(partition, 0) < until for partition, until in untils):
                    tags.append(tag(key, attempt))
        return tuple(tags)

    def close(self) -> None:
        """Close the ledger."""
        if self._opened is not None:
            self._opened.close()

    def _ledger(self) -> "Ledger":
        if self._opened is None:
            # Import here: a task needs no ledger, and the import takes longer than a small task.
            from headrace.gate.ledger.connection import OF_A_QUERY  # noqa: PLC0415
            from headrace.gate.ledger.ledger import Ledger  # noqa: PLC0415

            self._opened = Ledger.open(self._url, timeouts=OF_A_QUERY)
        return self._opened
