"""Offsets of processed batches in a consumer group, for those who watch lag there.

Nothing here is read back: the query's checkpoint says where it goes on.
"""

import logging
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from headgate.kafka.consumers import ClientConfig
from headgate.kafka.positions import Positions

_LOG: Final = logging.getLogger("headgate.kafka")


class GroupOffsets:
    """Commits to one group, without joining it; what fails is logged and stops nobody."""

    def __init__(self, client: ClientConfig, group: str) -> None:
        self._group = group
        self._committed: Positions = {}
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
        """Have these positions committed soon; the same ones again cost nothing."""
        self._consumer.poll(0)  # runs _on_commit for those before
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
        else:
            self._committed = dict(positions)

    def close(self) -> None:
        """Wait for what is under way, and let go."""
        self._consumer.close()

    def _on_commit(self, error: KafkaError | None, _positions: list[Position]) -> None:
        if error is not None:
            self._warn(error)

    def _warn(self, error: KafkaError) -> None:
        _LOG.warning(
            "The offsets of processed batches were not committed to the group %s: %s",
            self._group,
            error.str(),
        )
