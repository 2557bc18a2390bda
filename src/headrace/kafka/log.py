"""Kafka as a log: what a subscription names, matched with what the cluster has now."""

from collections.abc import Iterable, Mapping

from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import SourceError
from headrace.kafka.attempts import Attempts, known_id
from headrace.kafka.consumers import close_idle_consumers
from headrace.kafka.group import GroupOffsets
from headrace.kafka.lookup import Lookup
from headrace.kafka.options import KafkaOptions
from headrace.kafka.sizes import RecordSizes
from headrace.source.log import Topic
from headrace.source.positions import Checksums, ChecksumsBefore, Positions, partitions_of


def lookup_with(options: KafkaOptions) -> Lookup:
    """Asks the brokers as the options say."""
    return Lookup(
        options.client, options.fetch_offset_retries, options.fetch_offset_retry_interval_ms
    )


class KafkaLog:
    """The `headrace.source.Log` of one source; it is not connected before the first question.

    Every method raises ``BrokerError`` where the cluster cannot be reached.
    """

    name = "Kafka"
    source = "kafka"

    def __init__(self, options: KafkaOptions) -> None:
        self.servers = options.bootstrap_servers
        self._subscription = options.subscription
        self._lookup = lookup_with(options)
        self._sizes = RecordSizes(options.client, options.poll_timeout_ms)
        self._client = options.client
        self._commit_group = options.commit_group
        self._group: GroupOffsets | None = None
        self._attempts = None if options.channel is None else Attempts(options.channel)
        self._known_ids: dict[str, str] = {}

    @property
    def cut(self) -> None:
        """After an unclean election offsets are given again."""
        return None

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """See `headrace.source.Log.topics`."""
        found = self._topics(must_exist=must_exist)
        if self._attempts is not None:
            self._known_ids = {name: known_id(name, topic) for name, topic in found.items()}
        return found

    def _topics(self, *, must_exist: bool) -> Mapping[str, Topic]:
        wanted = self._subscription
        if wanted.pattern is not None:
            return self._lookup.matching(wanted.pattern)
        names = wanted.topics or tuple(dict.fromkeys(tp.topic for tp in wanted.partitions))
        found = self._lookup.topics(names)
        if must_exist:
            missing: list[str] = [repr(name) for name in names if name not in found]
            missing += [
                str(tp)
                for tp in wanted.partitions
                if tp.topic in found and tp.partition not in found[tp.topic].partitions
            ]
            if missing:
                raise SourceError(
                    f"Kafka has no {' and no '.join(missing)} ({wanted.option}); make it, or"
                    " correct the name."
                )
        return found

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """See `headrace.source.Log.partitions`."""
        existing = partitions_of({name: topic.partitions for name, topic in topics.items()})
        if not self._subscription.partitions:
            return existing
        assigned = set(self._subscription.partitions)
        return [tp for tp in existing if tp in assigned]

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.Log.earliest`."""
        return self._lookup.earliest(partitions)

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.Log.latest`."""
        return self._lookup.latest(partitions)

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """See `headrace.source.Log.bounds`."""
        return self._lookup.bounds(partitions)

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.Log.reached`."""
        return self._lookup.latest(partitions)

    def checksums(self, positions: Positions) -> Checksums:
        """None: Kafka has no such thing."""
        return {}

    def hold_to(self, after: ChecksumsBefore) -> None:
        """Nothing: Kafka has no such thing."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """See `headrace.source.Log.at_timestamps`."""
        return self._lookup.at_timestamps(timestamps_ms)

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """The mean of some records, which are read."""
        return self._sizes.measure(current, latest)

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """None: in Kafka's log, a gap is compaction's or a transaction's."""
        return []

    def decided(self, latest: Positions) -> Positions:
        """Before what a stage is writing; all of it where the topics are no channel.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        if self._attempts is None:
            return latest
        return self._attempts.decided(self._ids(tp.topic for tp in latest), latest)

    def left_out(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """The attempts that stages have given up; none where the topics are no channel.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        if self._attempts is None:
            return ()
        wanted = list(ranges)
        return self._attempts.left_out(self._ids(r.topic for r in wanted), wanted)

    def _ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of topics, as they were when the topics were last looked up."""
        wanted = set(names)
        if wanted - self._known_ids.keys():
            found = self._lookup.topics(wanted)
            self._known_ids |= {name: known_id(name, topic) for name, topic in found.items()}
        return {name: self._known_ids[name] for name in wanted & self._known_ids.keys()}

    def processed(self, positions: Positions) -> None:
        """Commit these offsets to the consumer group, if the user named one."""
        if self._commit_group is None:
            return
        if self._group is None:
            self._group = GroupOffsets(self._client, self._commit_group)
        self._group.commit(positions)

    def close(self) -> None:
        """Let go of the brokers."""
        if self._group is not None:
            self._group.close()
        if self._attempts is not None:
            self._attempts.close()
        close_idle_consumers()
