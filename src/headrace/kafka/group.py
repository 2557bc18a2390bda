"""Offsets of processed batches in a consumer group, for those who watch lag there.

Nothing here is read back: the query's checkpoint says where it goes on.
"""

import logging
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from headrace.kafka.consumers import ClientConfig
from headrace.source.positions import Positions

_LOG: Final = logging.getLogger("headrace.kafka")

_PATIENCE_S: Final = 3.0  # the first commit looks for the group's coordinator, too
_POLL_S: Final = 0.005


class GroupOffsets:
    """Commits to one group, without joining it; what fails is logged and stops nobody."""

    def __init__(self, client: ClientConfig, group: str) -> None:
        self._group = group
        self._committed: Positions = {}
        self._unanswered = 0
        self._consumer = Consumer(
            {
                **client,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": self._on_commit,
            },
            logger=_LOG,
        )

    def commit(self, positions: Positions) -> None:
        """Commit these positions; the same ones again cost nothing.

        They are committed on return, unless the broker is slower than a few seconds: Spark ends the
        planner's process without a word when a query ends, and what was under way with it.
        """
        changed = {tp: o for tp, o in positions.items() if self._committed.get(tp) != o}
        if not changed:
            return
        try:
            self._consumer.commit(
                offsets=[Position(*tp, offset) for tp, offset in changed.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            self._warn(error.args[0])
            return
        self._committed = dict(positions)
        self._unanswered += 1
        deadline = time.monotonic() + _PATIENCE_S
        while self._unanswered and time.monotonic() < deadline:
            self._consumer.poll(_POLL_S)  # runs _on_commit

    def close(self) -> None:
        """Wait for what is under way, and let go."""
        self._consumer.close()

    def _on_commit(self, error: KafkaError | None, positions: list[Position]) -> None:
        self._unanswered -= 1
        failed = error or next((p.error for p in positions if p.error is not None), None)
        if failed is not None:
            self._committed = {}  # so that the next time commits them all
            self._warn(failed)

    def _warn(self, error: KafkaError) -> None:
        _LOG.warning(
            "The offsets of processed batches were not committed to the group %s: %s",
            self._group,
            error.str(),
        )
