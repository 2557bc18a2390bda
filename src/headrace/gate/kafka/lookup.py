"""Requests of the planner to Kafka: topics, and the first and end offsets of their partitions.

Each call sends one request to each broker, for all partitions of that broker.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition as Position,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka.client.tokens import with_tokens
from headrace.gate.kafka.consumers import MISSING, ClientConfig
from headrace.gate.source.log import Topic

_LOG: Final = logging.getLogger("headrace.kafka")
# An admin client gets a consumer's settings, and warns of each setting that it does not use.
CLIENT_LOG: Final = logging.getLogger("headrace.kafka.admin")
# Each failed connection is a line; without a logging setup, Headrace's own error reports it once.
CLIENT_LOG.addHandler(logging.NullHandler())
CLIENT_LOG.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))

_Answer = TypeVar("_Answer")

# A broker that disappears after the first contact restarts, so requests wait for it.
_LATER_S: Final = 60.0
# A request may go to a dead broker whose partitions others lead by now, so its timeout is shorter.
# The timeout doubles at the next try, because the broker may only be slow.
_REQUEST_S: Final = 5.0

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # Sixteen zero bytes: the broker has no topic ids.
_PERMANENT: Final = frozenset(
    {
        *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        *(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED),
        *(KafkaError._AUTHENTICATION, KafkaError.UNSUPPORTED_VERSION, KafkaError.TOPIC_EXCEPTION),
    }
)
# Temporary errors: partitions are new or move, leaders are elected, brokers restart.
_PASSING: Final = frozenset(
    {
        *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE),
        *(KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE),
        *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH),
        *(KafkaError.KAFKA_STORAGE_ERROR, KafkaError.BROKER_NOT_AVAILABLE),
        *(KafkaError.NETWORK_EXCEPTION, KafkaError._TRANSPORT, KafkaError._TIMED_OUT),
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._NOENT,  # librdkafka's own code if none of the partitions has a leader
    }
)


class _ClientErrors:
    """Callback that stores a client's last error.

    It is an object without a reference to `Lookup`, so that the client is freed together with its
    `Lookup`. In a reference cycle, the client would try to connect, and log failures, until the
    next garbage collection.
    """

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "All brokers down" only follows the error with the reason.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error


class Lookup:
    """Requests to a cluster, repeated after temporary errors and incomplete answers.

    Every method raises ``BrokerError`` if the cluster cannot be reached or refuses a request. A
    failed request is repeated ``retries`` times, every ``retry_interval_ms``. During a temporary
    error, such as a leader election, a try repeats its request every ``poll_s``. The first answer
    must arrive within ``first_contact_s``, because an address that is wrong from the start should
    be reported soon. If ``is_reached`` is true, the cluster was reached before, and the first
    answer may take as long as later answers.
    """

    def __init__(
        self,
        client: ClientConfig,
        retries: int,
        retry_interval_ms: int,
        *,
        is_reached: bool = False,
        first_contact_s: float = 8.0,
        poll_s: float = 0.1,
        make_admin: Callable[..., AdminClient] = AdminClient,
    ) -> None:
        self._servers = client["bootstrap.servers"]
        self._retries = retries
        self._retry_interval_s = retry_interval_ms / 1000
        self._first_contact_s = first_contact_s
        self._poll_s = poll_s
        self._level = (
            IsolationLevel.READ_COMMITTED
            if client.get("isolation.level") == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._missing: frozenset[str] = frozenset()
        self._reached = is_reached
        self._errors = _ClientErrors()
        settings = {**with_tokens(client), "error_cb": self._errors}
        self._admin = make_admin(settings, logger=CLIENT_LOG)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the topics among these names that exist. A missing topic is looked up repeatedly.

        A topic that was already missing in the last call is looked up only once, so that a deleted
        topic does not delay every plan.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}
        topics = self._ask(lambda timeout: self._describe(wanted, timeout))
        for _ in range(self._retries):
            if self._missing.issuperset(name for name in wanted if name not in topics):
                break
            time.sleep(self._retry_interval_s)  # Brokers learn of a new topic with a delay.
            topics |= self._ask(lambda timeout: self._describe(wanted, timeout))
        self._missing = frozenset(wanted) - topics.keys()
        return topics

    def listeners(self) -> dict[int, tuple[str, int]]:
        """Return the host and port that each broker advertises, by broker id."""
        brokers = self._ask(lambda timeout: self._admin.list_topics(timeout=timeout).brokers)
        return {
            number: (str(broker.host), broker.port) for number, broker in sorted(brokers.items())
        }

    def matching(self, pattern: re.Pattern[str]) -> dict[str, Topic]:
        """Return the topics whose name contains a match of the pattern, except Kafka's own.

        As in the native connector, the pattern ``orders`` matches the topic ``orders-dlq`` too.
        """

        def names(timeout: float) -> list[str]:
            return list(self._admin.list_topics(timeout=timeout).topics)

        return self.topics(
            name
            for name in self._ask(names)
            if name not in _INTERNAL_TOPICS and pattern.search(name)
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition's log."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))[0]

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's end offset; with ``read_committed``, its last stable offset."""
        return self._offsets(dict.fromkeys(partitions, _LATEST))[0]

    def bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the first offset and the end offset of each partition, requested together."""
        wanted = list(partitions)
        specs = dict.fromkeys(wanted, _EARLIEST), dict.fromkeys(wanted, _LATEST)
        earliest, latest = self._offsets(*specs)
        return earliest, latest

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time (ms); None for no such record."""
        specs = {tp: OffsetSpec.for_timestamp(ms) for tp, ms in timestamps_ms.items()}
        (offsets,) = self._offsets(specs)
        return {tp: offset if offset >= 0 else None for tp, offset in offsets.items()}

    def _offsets(
        self, *questions: Mapping[TopicPartition, OffsetSpec]
    ) -> list[dict[TopicPartition, int]]:
        """Send all requests for offsets at the same time. Return one dict for each request."""
        if not any(questions):
            return [{} for _ in questions]
        topics = sorted({tp.topic for specs in questions for tp in specs})

        def offsets(timeout: float) -> list[dict[TopicPartition, int]]:
            requests = [
                self._admin.list_offsets(
                    {Position(*tp): spec for tp, spec in specs.items()},
                    isolation_level=self._level,
                    request_timeout=timeout,
                )
                for specs in questions
            ]
            try:
                return [_results(futures) for futures in requests]
            except (KafkaException, _Unready):
                if self._reached:
                    self._learn_leaders(topics, timeout)
                raise

        return self._ask(offsets)

    def _learn_leaders(self, topics: list[str], timeout: float) -> None:
        """Refresh the client's list of partition leaders, because an election makes it outdated."""
        described = self._admin.describe_topics(TopicCollection(topics), request_timeout=timeout)
        for future in described.values():
            future.exception()  # Waits for the answer; the next try raises its error.

    def _describe(self, names: list[str], timeout: float) -> dict[str, Topic]:
        described = {}
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=timeout)
        for name, future in futures.items():
            try:
                answer = future.result()
            except KafkaException as error:
                if error.args[0].code() in MISSING:
                    continue
                raise
            if not answer.partitions:
                # A busy broker answers this while it loads; every topic has partitions.
                raise _Unready(f"the topic {name} was described without partitions")
            topic_id = str(answer.topic_id)
            described[name] = Topic(
                topic_id=None if topic_id == _NO_TOPIC_ID else topic_id,
                partitions=tuple(sorted(p.id for p in answer.partitions)),
            )
        return described

    def _ask(self, question: Callable[[float], _Answer]) -> _Answer:
        """Call ``question`` and return its answer; retry if the cluster has answered before."""
        attempts = self._retries + 1
        for attempt in range(1, attempts + 1):
            try:
                answer = self._ask_until_passed(question)
            except (KafkaException, _Unready) as error:
                self._admin.poll(0)  # Calls `_errors` with the reason.
                reason = self._explain(error)
                unreached = not self._reached and isinstance(error, KafkaException)
                if attempt == attempts or unreached or _code(error) in _PERMANENT:
                    raise BrokerError(
                        f"Kafka at {self._servers} (kafka.bootstrap.servers) did not answer:"
                        f" {reason}; check the address, that the broker runs,"
                        " and the kafka.security options."
                    ) from error
                _LOG.info("Kafka did not answer (try %d of %d): %s", attempt, attempts, reason)
                time.sleep(self._retry_interval_s)
            else:
                self._reached, self._errors.last = True, None
                return answer
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _ask_until_passed(self, question: Callable[[float], _Answer]) -> _Answer:
        """Make one try: repeat the request during temporary errors, and return the answer."""
        deadline = time.monotonic() + (_LATER_S if self._reached else self._first_contact_s)
        request_s = _REQUEST_S
        while True:
            left_s = max(deadline - time.monotonic(), self._poll_s)
            try:
                return question(min(left_s, request_s))
            except (KafkaException, _Unready) as error:
                passing = isinstance(error, _Unready) or _code(error) in _PASSING
                if not passing or left_s <= self._poll_s:
                    raise
            time.sleep(self._poll_s)
            request_s *= 2

    def _explain(self, error: Exception) -> str:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        return text if self._errors.last is None else f"{text} ({self._errors.last.str()})"


class _Unready(Exception):  # noqa: N818  (not an error to anybody outside)
    """Incomplete answer from a broker, which a repeated request corrects."""


def _code(error: Exception) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _results(futures: Mapping[Position, Future[Any]]) -> dict[TopicPartition, int]:
    offsets = {TopicPartition(p.topic, p.partition): f.result().offset for p, f in futures.items()}
    for tp, offset in offsets.items():
        # librdkafka returns this, and no error, for the partitions of a broker that did not answer.
        # A -1 is an answer: no record is at or after the requested time.
        if offset < -1:
            raise _Unready(f"the leader of {tp} did not answer")
    return offsets
