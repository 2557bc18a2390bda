"""Of what stages write into topics: what is decided, and what is not to be read.

Each record names the attempt that produced it in a header; what became of the attempt the ledger
says (`headrace.ledger.outputs`). Records without the header are somebody else's, and are read.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.control.ranges import OffsetRange
from headrace.errors import SourceError
from headrace.source.log import Topic
from headrace.source.positions import Positions

if TYPE_CHECKING:
    from headrace.ledger import Ledger

HEADER: Final = "headrace-batch"
"""The header of the records that a stage has written; its value is that of `tag`."""


def tag(key: str, attempt: str) -> str:
    """What the records of an attempt to write a batch are marked with."""
    return f"{key}/{attempt}"


def known_id(name: str, topic: Topic) -> str:
    """The topic's id, by which the ledger knows it.

    Raises:
        SourceError: the brokers are too old to give any.
    """
    if topic.topic_id is None:
        raise SourceError(
            f"The brokers give the topic {name!r} no id, as those before 2.8 do not, so it cannot"
            " be a channel; update them, or link the stages by a journal."
        )
    return topic.topic_id


class Attempts:
    """What the ledger knows of the attempts to write into topics; opened at the first question.

    Every method raises ``LedgerError`` where the ledger cannot be read or written.

    Args:
        ledger_url: that of the stages that write.
    """

    def __init__(self, ledger_url: str) -> None:
        self._url = ledger_url
        self._opened: Ledger | None = None

    def decided(self, topic_ids: Mapping[str, str], latest: Positions) -> Positions:
        """Where the first attempt begins in each partition that may yet be done or given up.

        Args:
            topic_ids: by the topics' names.
            latest: where the partitions end, looked up before this call: what begins to be written
                after it comes behind that.
        """
        ends = dict(latest)
        for name, topic_id in topic_ids.items():
            for starts in self._ledger().open_outputs(topic_id):
                for tp in latest:
                    if tp.topic == name:
                        ends[tp] = min(ends[tp], starts.get(tp.partition, 0))
        return ends

    def left_out(
        self, topic_ids: Mapping[str, str], ranges: Iterable[OffsetRange]
    ) -> tuple[str, ...]:
        """The tags of the attempts that were given up, and may have records in these ranges."""
        found = []
        for name, topic_id in topic_ids.items():
            untils = [(r.partition, r.until) for r in ranges if r.topic == name]
            for key, attempt, starts in self._ledger().left_out(topic_id):
                if any(starts.get(partition, 0) < until for partition, until in untils):
                    found.append(tag(key, attempt))
        return tuple(found)

    def close(self) -> None:
        """Let the ledger go."""
        if self._opened is not None:
            self._opened.close()

    def _ledger(self) -> "Ledger":
        if self._opened is None:
            # Here, for a task needs none, and its import takes longer than a small task.
            from headrace.ledger import Ledger  # noqa: PLC0415
            from headrace.ledger.patience import QUERY_PATIENCE_S  # noqa: PLC0415

            self._opened = Ledger.open(self._url, patience_s=QUERY_PATIENCE_S)
        return self._opened
