"""Kafka as a `headrace.gate.source.Log`: the existing topics of a subscription, for planning."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition as Position

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, partitions_of
from headrace.errors import SourceError
from headrace.gate.kafka.attempts import Attempts, known_id
from headrace.gate.kafka.client.tokens import with_tokens
from headrace.gate.kafka.consumers import ClientConfig, close_idle_consumers
from headrace.gate.kafka.kafka_options import KafkaOptions
from headrace.gate.kafka.lookup import Lookup
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges
from headrace.gate.source.log import Topic
from headrace.gate.source.losses import Losses

_LOG: Final = logging.getLogger("headrace.kafka")

_SAMPLE_RECORDS: Final = 40
_SAMPLE_PARTITIONS: Final = 3

_COMMIT_POLL_S: Final = 0.005


def lookup_with(options: KafkaOptions) -> Lookup:
    """Return a lookup with the client settings of these options.

    In a query of `Gate.read`, which has already reached the brokers, the lookup waits longer for an
    unreachable broker.
    """
    return Lookup(
        options.client,
        options.fetch_offset_retries,
        options.fetch_offset_retry_interval_ms,
        is_reached=options.shared.read is not None,
    )


class KafkaLog:
    """Kafka's `headrace.gate.source.Log` for one source. It connects at its first request.

    Every method raises ``BrokerError`` if the cluster cannot be reached. `readable_until` and
    `aborted` raise ``LedgerError`` if the topics are a channel and its ledger cannot be read.
    """

    name = "Kafka"
    source = "kafka"

    def __init__(self, options: KafkaOptions) -> None:
        self.servers = options.bootstrap_servers
        self._options = options
        self._lookup = lookup_with(options)
        self._group: GroupOffsets | None = None
        self._attempts = None if options.channel is None else Attempts(options.channel)
        self._known_ids: dict[str, str] = {}
        self._mean_bytes: dict[str, float] = {}

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        wanted = self._options.subscription
        if wanted.pattern is not None:
            existing = self._lookup.matching(wanted.pattern)
        else:
            names = wanted.topics or tuple(dict.fromkeys(tp.topic for tp in wanted.partitions))
            existing = self._lookup.topics(names)
            if must_exist:
                self._check_existing(names, existing)
        if self._attempts is not None:
            self._known_ids = {name: known_id(name, topic) for name, topic in existing.items()}
        return existing

    def _check_existing(self, names: Iterable[str], found: Mapping[str, Topic]) -> None:
        wanted = self._options.subscription
        missing = [repr(name) for name in names if name not in found]
        missing += [
            str(tp)
            for tp in wanted.partitions
            if tp.topic in found and tp.partition not in found[tp.topic].partitions
        ]
        if missing:
            raise SourceError(
                f"Kafka has no {' and no '.join(missing)} ({wanted.option}); create it, or correct"
                " the name."
            )

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        existing = partitions_of({name: topic.partitions for name, topic in topics.items()})
        assigned = set(self._options.subscription.partitions)
        return [tp for tp in existing if not assigned or tp in assigned]

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self._lookup.earliest(partitions)

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self._lookup.latest(partitions)

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        return self._lookup.bounds(partitions)

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self._lookup.latest(partitions)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        return self._lookup.at_timestamps(timestamps_ms)

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Return the mean size (bytes) of key and value in a sample of each topic's next records.

        The sample is from the partitions with the most unread offsets, because they make up most of
        a batch. Without a new sample, a topic keeps its last size. A topic never sampled is left
        out.
        """
        config = ReaderConfig(
            self._options.client,
            ("topic", "key", "value"),
            Losses("Kafka", fail=False).pass_over,
            self._options.poll_timeout_ms,
        )
        records: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        for batch in read_ranges(config, _sample(current, latest)):
            for topic in pc.unique(batch["topic"]).to_pylist():
                of_topic = batch.filter(pc.equal(batch["topic"], topic))
                records[topic] += of_topic.num_rows
                size_bytes[topic] += _length(of_topic["key"]) + _length(of_topic["value"])
        self._mean_bytes |= {topic: size_bytes[topic] / n for topic, n in records.items()}
        return self._mean_bytes

    def readable_until(self, latest: Positions) -> Positions:
        """Lower each end offset to the start of the first attempt that is still in progress."""
        if self._attempts is None:
            return latest
        return self._attempts.readable_until(self._ids(tp.topic for tp in latest), latest)

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """Return the tags of aborted attempts in these ranges; empty without a channel."""
        if self._attempts is None:
            return ()
        wanted = list(ranges)
        return self._attempts.aborted(self._ids(r.topic for r in wanted), wanted)

    def _ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics, by name, from the last lookup."""
        wanted = set(names)
        if wanted - self._known_ids.keys():
            topics = self._lookup.topics(wanted)
            self._known_ids |= {name: known_id(name, topic) for name, topic in topics.items()}
        return {name: self._known_ids[name] for name in wanted & self._known_ids.keys()}

    def processed(self, positions: Positions) -> None:
        """Commit these offsets to the consumer group, if ``headrace.commit.group`` is set."""
        if self._options.commit_group is None:
            return
        if self._group is None:
            self._group = GroupOffsets(self._options.client, self._options.commit_group)
        self._group.commit(positions)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._attempts is not None:
            self._attempts.close()
        close_idle_consumers()


def _sample(current: Positions, latest: Positions) -> list[OffsetRange]:
    topics: dict[str, list[OffsetRange]] = {}
    for (topic, partition), until in latest.items():
        start = current[TopicPartition(topic, partition)]
        if start < until:
            topics.setdefault(topic, []).append(OffsetRange(topic, partition, start, until))
    return [
        OffsetRange(r.topic, r.partition, r.start, min(r.until, r.start + _SAMPLE_RECORDS))
        for ranges in topics.values()
        for r in sorted(ranges, key=lambda r: -r.count)[:_SAMPLE_PARTITIONS]
    ]


def _length(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


class GroupOffsets:
    """Committer of processed offsets to a consumer group, so that lag monitors can see the offsets.

    The client does not join the group. A commit waits up to ``wait_s`` for the broker's answer; the
    broker first looks for the group's coordinator. A failed commit is only logged. The query never
    reads these offsets, because its position is in its checkpoint.
    """

    def __init__(self, client: ClientConfig, group: str, wait_s: float = 3.0) -> None:
        self._group = group
        self._wait_s = wait_s
        self._committed: Positions = {}
        self._unanswered = 0
        self._is_refused = False
        own = {"group.id": group, "enable.auto.commit": False, "on_commit": self._on_commit}
        self._consumer = Consumer({**with_tokens(client), **own}, logger=_LOG)

    def commit(self, positions: Positions) -> None:
        """Commit positions that have changed since the last commit.

        Wait up to ``wait_s`` until they are committed: when a query ends, Spark kills the planner's
        process, and pending commits would be lost.
        """
        if self._is_refused:
            self._serve(0)
        changed = {tp: o for tp, o in positions.items() if self._committed.get(tp) != o}
        if not changed or (self._is_refused and self._unanswered):
            return
        offsets = [Position(*tp, offset) for tp, offset in changed.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._warn(error.args[0])
            return
        self._committed = dict(positions)
        self._unanswered += 1
        deadline = time.monotonic() + self._wait_s
        while self._unanswered and not self._is_refused and time.monotonic() < deadline:
            self._serve(_COMMIT_POLL_S)

    def _serve(self, wait_s: float) -> None:
        """Process the client's pending events, such as an error or the result of a commit."""
        while (event := self._consumer.poll(wait_s)) is not None:
            if (error := event.error()) is not None:
                self._on_event(error)

    def close(self) -> None:
        """Wait for pending commits, and disconnect."""
        self._consumer.close()

    def _on_event(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._is_refused:
            self._is_refused = True
            _LOG.warning(
                "The offsets of processed batches are not committed to the group %s, which this"
                " user may not use: grant the user Read on the group, or leave"
                " headrace.commit.group out. This is logged once.",
                self._group,
            )

    def _on_commit(self, error: KafkaError | None, positions: list[Position]) -> None:
        self._unanswered -= 1
        failed = error or next((p.error for p in positions if p.error is not None), None)
        if failed is None:
            self._is_refused = False
            return
        self._committed = {}  # The next call commits all positions again.
        self._on_event(failed)
        if not self._is_refused:
            self._warn(failed)

    def _warn(self, error: KafkaError) -> None:
        _LOG.warning(
            "The offsets of processed batches were not committed to the group %s: %s",
            self._group,
            error.str(),
        )
