"""What the planner asks of Kafka: which partitions there are, and where their logs begin and end.

One request per broker for all of its partitions, never one per partition.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, OffsetSpec

from headgate.control.ranges import TopicPartition
from headgate.errors import BrokerError
from headgate.kafka.consumers import ClientConfig

_LOG: Final = logging.getLogger("headgate.kafka")
_Answer = TypeVar("_Answer")

# A broker that cannot be reached at the start is a mistake, to be told within ten seconds; one that
# goes away later is a broker that restarts, and is waited for.
_FIRST_CONTACT_S: Final = 8.0
_LATER_S: Final = 60.0

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # sixteen zero bytes: a broker older than topic ids
_MISSING: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_PERMANENT: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.TOPIC_EXCEPTION,
    }
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster knows it.

    Attributes:
        topic_id: what tells a topic from a later one of the same name; None on brokers before 2.8.
        partitions: the partitions' numbers, rising.
    """

    topic_id: str | None
    partitions: tuple[int, ...]


class Lookup:
    """Asks a cluster, patiently: passing errors are tried again, and so is an empty answer.

    Args:
        client: librdkafka's settings.
        retries: how often a question is asked again (fetchOffset.numRetries).
        retry_interval_ms: the time between (fetchOffset.retryIntervalMs).

    Every method raises ``BrokerError`` where the cluster cannot be reached or refuses.
    """

    def __init__(self, client: ClientConfig, retries: int, retry_interval_ms: int) -> None:
        self._servers = client["bootstrap.servers"]
        self._retries = retries
        self._retry_interval_s = retry_interval_ms / 1000
        self._committed_only = client.get("isolation.level") == "read_committed"
        self._reached = False
        self._reason: KafkaError | None = None
        settings: dict[str, Any] = {**client, "error_cb": self._on_error}
        self._admin = AdminClient(settings, logger=_LOG)

    def _on_error(self, error: KafkaError) -> None:
        # "All brokers down" follows the error that says why; the first is worth keeping.
        if self._reason is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._reason = error

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""
        wanted = sorted(names)
        if not wanted:
            return {}
        return self._ask(lambda timeout: self._describe(wanted, timeout))

    def matching(self, pattern: re.Pattern[str]) -> dict[str, Topic]:
        """The topics in whose name the pattern is found, but Kafka's own.

        As with the native connector: found, so that ``orders`` matches ``orders-dlq`` too.
        """

        def names(timeout: float) -> list[str]:
            return list(self._admin.list_topics(timeout=timeout).topics)

        return self.topics(
            name
            for name in self._ask(names)
            if name not in _INTERNAL_TOPICS and pattern.search(name)
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition's log begins."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition's log ends; with ``read_committed``, its last stable offset."""
        return self._offsets(dict.fromkeys(partitions, _LATEST))

    def bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """``(earliest, latest)``, asked at the same time."""
        wanted = list(partitions)
        if not wanted:
            return {}, {}

        def both(timeout: float) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            earliest = self._request(dict.fromkeys(wanted, _EARLIEST), timeout)
            latest = self._request(dict.fromkeys(wanted, _LATEST), timeout)
            return _results(earliest), _results(latest)

        return self._ask(both)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose record is at or after the time (ms); None where there is none."""
        specs = {tp: OffsetSpec.for_timestamp(ms) for tp, ms in timestamps_ms.items()}
        return {tp: o if o >= 0 else None for tp, o in self._offsets(specs).items()}

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        return self._ask(lambda timeout: _results(self._request(specs, timeout)))

    def _request(
        self, specs: Mapping[TopicPartition, OffsetSpec], timeout: float
    ) -> dict[Position, Future[Any]]:
        level = (
            IsolationLevel.READ_COMMITTED
            if self._committed_only
            else IsolationLevel.READ_UNCOMMITTED
        )
        return self._admin.list_offsets(
            {Position(*tp): spec for tp, spec in specs.items()},
            isolation_level=level,
            request_timeout=timeout,
        )

    def _describe(self, names: list[str], timeout: float) -> dict[str, Topic]:
        described = {}
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=timeout)
        for name, future in futures.items():
            try:
                answer = future.result()
            except KafkaException as error:
                if error.args[0].code() in _MISSING:
                    continue
                raise
            if not answer.partitions:
                # A busy broker answers so while it loads; no topic has no partition.
                raise _Unready(f"the topic {name} was described without partitions")
            topic_id = str(answer.topic_id)
            described[name] = Topic(
                topic_id=None if topic_id == _NO_TOPIC_ID else topic_id,
                partitions=tuple(sorted(p.id for p in answer.partitions)),
            )
        return described

    def _ask(self, question: Callable[[float], _Answer]) -> _Answer:
        """The answer, after as many tries as allowed; without a first contact there is one try."""
        attempts = self._retries + 1
        for attempt in range(1, attempts + 1):
            try:
                answer = question(_LATER_S if self._reached else _FIRST_CONTACT_S)
            except (KafkaException, _Unready) as error:
                self._admin.poll(0)  # runs _on_error, which learns the reason
                reason = self._explain(error)
                unreached = not self._reached and isinstance(error, KafkaException)
                if attempt == attempts or unreached or _is_permanent(error):
                    raise BrokerError(
                        f"Kafka at {self._servers} (kafka.bootstrap.servers) did not answer:"
                        f" {reason}; check the address, that the broker runs,"
                        " and the kafka.security options."
                    ) from error
                _LOG.info("Kafka did not answer (try %d of %d): %s", attempt, attempts, reason)
                time.sleep(self._retry_interval_s)
            else:
                self._reached, self._reason = True, None
                return answer
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _explain(self, error: Exception) -> str:
        if self._reason is not None:
            return self._reason.str()
        return error.args[0].str() if isinstance(error, KafkaException) else str(error)


class _Unready(Exception):  # noqa: N818  (not an error to anybody outside)
    """An answer that a broker gives only for a moment."""


def _is_permanent(error: Exception) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _PERMANENT


def _results(futures: Mapping[Position, Future[Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(position.topic, position.partition): future.result().offset
        for position, future in futures.items()
    }
