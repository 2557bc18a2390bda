"""What a flow needs of a channel: to write it, to read it, and to know what waits on it."""

from typing import Protocol

from pyspark.sql import DataFrame

from headrace.control.hop_queue import InputQueue
from headrace.ledger import Ledger


class WrittenBatch(Protocol):
    """What a channel needs of the batch that is written; `headrace.Batch` is one."""

    @property
    def key(self) -> str:
        """The same for every run of the same ranges, another for every other batch."""


class ChannelQueue(Protocol):
    """What waits on a channel for one stage that reads it. For one thread."""

    def look(self) -> InputQueue:
        """What waits now; its rate is not known here (``takes_bytes_per_s`` is None).

        Raises:
            HeadraceError: the channel or the ledger cannot be asked.
        """

    def close(self) -> None:
        """Let go of what it holds."""


class Channel(Protocol):
    """What links a stage that writes to those that read: each of these reads all of it, once.

    A value: it can be pickled, opens nothing until it is used, and shows no secret. Two are equal
    if they are one place, however they are read.
    """

    @property
    def where(self) -> str:
        """What it is, to be shown; it holds no secret."""

    @property
    def has_one_writer(self) -> bool:
        """Whether only one stage of a flow may write it, as with a lane of a journal."""

    def reach(self) -> None:
        """See that it is there and can be written, before any batch is; a journal is made.

        Raises:
            HeadraceError: it cannot be reached or written.
        """

    def write(self, df: DataFrame, batch: WrittenBatch, ledger: Ledger) -> None:
        """Give what a batch has made to the stages that read; in the writing stage's handler.

        When it returns, no crash loses the records. However often it is called for one batch, by
        whatever process, and whatever ``df`` has then, readers have the records of one call, each
        once. If it raises, they have nothing of this call.

        Args:
            df: The columns of Spark's Kafka sink: ``value`` (binary or string), and where wanted
                ``key`` (the same) and ``headers``.
            batch: The batch of the writing stage.
            ledger: The writing stage's.

        Raises:
            OptionError: ``df`` has other columns, or lacks the value.
            HeadraceError: the channel cannot be written.
        """

    @property
    def source(self) -> str:
        """What a gate reads it with, such as kafka."""

    def reading(self, ledger_url: str) -> dict[str, str]:
        """The options of that source with which all of it is read, each batch once.

        Args:
            ledger_url: The URL of the writing stages' ledger, in full.

        Raises:
            HeadraceError: the channel cannot be reached.
        """

    def queue(self, gate: str, ledger: Ledger) -> ChannelQueue:
        """What waits for the stage whose gate this is.

        Args:
            gate: The name of the reading stage's gate.
            ledger: Its ledger.
        """
