"""Attempts of a stage to write a batch into a topic: finished ones are read, aborted ones skipped.

A header of each record names the attempt that produced it. The ledger has the attempt's outcome
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
"""Name of the header that a stage adds to each of its records; `tag` returns the header's value."""


def tag(key: str, attempt: str) -> str:
    """Return the value of `HEADER` for one attempt to write the batch with this key."""
    return f"{key}/{attempt}"


def known_id(name: str, topic: Topic) -> str:
    """Return the topic's id, by which the ledger identifies the topic.

    SourceError is raised if the topic has no id, as on brokers before version 2.8.
    """
    if topic.topic_id is None:
        raise SourceError(
            f"Topic {name!r} cannot be a channel, because its brokers give it no id; update the"
            " brokers to 2.8 or newer."
        )
    return topic.topic_id


def produce(
    client: Mapping[str, Any], topic: str, tag: str, batches: Iterable[pa.RecordBatch]
) -> int:
    """Produce the records of an attempt, each once. Return their number.

    ``client`` has settings from `client_config`. ``batches`` have the columns key, value (binary)
    and headers. A record goes to the partition that Java's client would choose.

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
    """Reader of the attempts in the stages' ledger. The first request opens the ledger."""

    def __init__(self, ledger_url: str) -> None:
        self._url = ledger_url
        self._opened: Ledger | None = None

    def readable_until(self, topic_ids: Mapping[str, str], latest: Positions) -> Positions:
        """Return, for each partition, the offset before which all attempts are finished or aborted.

        The caller must have requested ``latest`` before this call. So an attempt that begins during
        this call starts at or after ``latest``.
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
        """Return the tags of aborted attempts that may have records in these ranges."""
        tags = []
        for name, topic_id in topic_ids.items():
            untils = [(r.partition, r.until) for r in ranges if r.topic == name]
            for key, attempt, starts in self._ledger().outputs.aborted(topic_id):
                if any(starts.get(partition, 0) < until for partition, until in untils):
                    tags.append(tag(key, attempt))
        return tuple(tags)

    def close(self) -> None:
        """Close the ledger, if it is open."""
        if self._opened is not None:
            self._opened.close()

    def _ledger(self) -> "Ledger":
        if self._opened is None:
            # Import here: a task needs no ledger, and the import takes longer than a small task.
            from headrace.gate.ledger.connection import OF_A_QUERY  # noqa: PLC0415
            from headrace.gate.ledger.ledger import Ledger  # noqa: PLC0415

            self._opened = Ledger.open(self._url, timeouts=OF_A_QUERY)
        return self._opened
