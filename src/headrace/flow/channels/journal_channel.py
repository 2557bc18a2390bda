"""A journal as a channel: what a stage writes is in it once, so readers need to know nothing."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.errors import LaneTakenError, OptionError
from headrace.flow.channels.columns import as_output
from headrace.flow.channels.given import option_text
from headrace.flow.channels.journal_queue import JournalQueue
from headrace.flow.channels.protocol import WrittenBatch
from headrace.flow.channels.written import forgettable, is_done, lineage
from headrace.journal import Journal
from headrace.journal.batch_writer import BatchWriter
from headrace.journal.names import checked_journal_name, checked_lane
from headrace.journal.staging import new_attempt, stage
from headrace.ledger import Ledger

_LOG: Final = logging.getLogger("headrace.flow")

_STAGED: Final = "task int, number int, name string"
_LANE_WAIT_S: Final = 30.0
_LANE_POLL_S: Final = 0.05


@dataclass(frozen=True)
class JournalChannel:
    """A journal in a directory, of which one stage writes a lane; made by `journal`.

    The directory must be the same one for the driver and for every executor.

    Attributes:
        path: The journal's directory.
        lane: Which lane is written; all are read.
        options: Of the source that reads it.
    """

    path: str
    lane: int = 0
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def where(self) -> str:
        """The directory, as it was given."""
        return f"the journal {self.path}"

    @property
    def has_one_writer(self) -> bool:
        """A lane has one writer."""
        return True

    @property
    def source(self) -> str:
        """The journal's."""
        return "journal"

    def reach(self) -> None:
        """See that it is there; see `headrace.flow.channels.Channel.reach`.

        Raises:
            JournalError: the journal cannot be read or made.
        """
        Journal.open(self.path, create=True)

    def write(self, df: DataFrame, batch: WrittenBatch, ledger: Ledger) -> None:
        """Write a batch whole, and once; see `headrace.flow.channels.Channel.write`.

        Tasks stage its records as blocks; when all are durable, a manifest is written that says
        which offsets they get, and from then on the batch is written. A crash before leaves
        nothing, one after it is mended by whoever writes the lane next. The lane is this writer's
        for as long as that takes; while it is another's, it is waited for, half a minute at most.

        Raises:
            OptionError: the columns are others, or the batch's key is none.
            JournalError: the journal cannot be written.
        """
        output = as_output(df, self.where)
        journal = Journal.open(self.path, create=True)
        with _taken(journal, self.lane) as writer:
            writer.forget(forgettable(writer.written, ledger))
            before = next(
                (key for key in lineage(batch.key, ledger) if key in writer.written), None
            )
            if before is not None or is_done(batch.key, ledger):
                _LOG.info("Batch %s is in %s already.", batch.key, self.where)
                return
            names = _staged(output, journal, self.lane)
            if names:
                writer.commit(batch.key, names)

    def reading(self, ledger_url: str) -> dict[str, str]:
        """The journal's options. It is made if need be.

        Raises:
            JournalError: the journal cannot be read or made.
        """
        return {**self.options, "path": Journal.open(self.path, create=True).storage.url}

    def queue(self, gate: str, ledger: Ledger) -> JournalQueue:
        """What waits: exact, as the blocks tell it; see `headrace.flow.channels.Channel.queue`."""
        return JournalQueue(self.path, gate, ledger)


def journal(path: str, *, lane: int = 0, **options: object) -> JournalChannel:
    """A channel that is a journal in a directory; it is made when it is first used.

    Args:
        path: The directory, which every machine that runs tasks sees under this path.
        lane: The lane that is written.
        **options: Of ``format("headrace-journal")``, for the stages that read it.

    Raises:
        OptionError: There can be no such journal, or none that a stage can write.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise OptionError(
            f"The channel {path} cannot be written: a batch goes into a journal as a whole only"
            " where it is in a directory; give a path, or use a Kafka channel."
        )
    checked_journal_name((rest if separator else path).rstrip("/").rpartition("/")[2])
    if separator and not rest.startswith("/"):
        raise OptionError(f"The URL {path} has no absolute path; write file:///path.")
    given = {name: option_text(value) for name, value in options.items()}
    # One directory is one channel, however it is written.
    here = os.path.abspath(rest or path)  # noqa: PTH100  (links in it are kept)
    return JournalChannel(here, checked_lane(lane), given)


def _taken(journal: Journal, lane: int) -> BatchWriter:
    """The lane, once nobody else writes it."""
    deadline = time.monotonic() + _LANE_WAIT_S
    while True:
        try:
            return BatchWriter(journal, lane)
        except LaneTakenError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LANE_POLL_S)


def _staged(output: DataFrame, journal: Journal, lane: int) -> list[str]:
    """Have tasks write the records; their blocks, in the order of the tasks."""
    place, journal_id = journal.storage.url, journal.id
    attempt, timestamp_ms = new_attempt(), time.time_ns() // 1_000_000

    def staged_by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101  (it runs in a task)
        there = Journal.open(place)
        if there.id != journal_id:
            raise OptionError(
                f"The journal {place} is another one where this task runs; the directory must be"
                " the same on every machine."
            )
        number = task.taskAttemptId()
        names = stage(there, lane, attempt, number, batches, timestamp_ms=timestamp_ms)
        for place_in_task, name in enumerate(names):
            yield pa.record_batch(
                {
                    "task": pa.array([task.partitionId()], pa.int32()),
                    "number": pa.array([place_in_task], pa.int32()),
                    "name": pa.array([name]),
                }
            )

    rows = output.mapInArrow(staged_by_task, _STAGED).collect()
    return [row["name"] for row in sorted(rows, key=lambda row: (row["task"], row["number"]))]
