"""Runs what is derived from a stream on ranges that the stream has read before."""

import json
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.ledger import PlannedRange
from headrace.source.replay import replay_end

Use = Callable[[DataFrame], None]
"""What is done with a batch; what it raises, the replay raises."""

_LOOK_S: Final = 0.5
"""How often it is seen whether a query that should run a batch has ended."""


class ReplayStream:
    """A second query of the same stream, which reads only what it is told to.

    Only a streaming query can run what is derived from a stream. This one is begun like one that is
    started again after a crash: its checkpoint says what its first batch reads, and the end of each
    batch in which file the next one will be asked for.

    Args:
        stream: what is written; computed without state, and from one source.
    """

    def __init__(self, stream: DataFrame) -> None:
        self._stream = stream
        self._folder: Path | None = None
        self._query: StreamingQuery | None = None
        self._asked = 0
        self._use: Use | None = None
        self._raised: Exception | None = None
        self._done = threading.Event()
        self._turn = threading.Lock()

    def run(self, ranges: Sequence[PlannedRange], use: Use) -> None:
        """Have the records of these ranges used, as the stream would have them; one at a time.

        Raises:
            Exception: what ``use`` raises, or why the query ended.
        """
        with self._turn:
            self._use, self._raised = use, None
            self._done.clear()
            if self._query is None or not self._query.isActive:
                self._end()
                self._query = self._begin(ranges)
            else:
                self._ask(ranges)
            self._wait(self._query)
            if self._raised is not None:
                raise self._raised

    def close(self) -> None:
        """End the query; another one is begun when it is needed."""
        with self._turn:
            self._end()

    def _begin(self, ranges: Sequence[PlannedRange]) -> StreamingQuery:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-replay-"))
        self._asked = 0
        checkpoint = self._folder / "checkpoint"
        _plan_first_batch(checkpoint, json.dumps(replay_end(ranges, self._following())))
        writer = self._stream.writeStream.foreachBatch(self._run_batch)
        writer = writer.option("checkpointLocation", checkpoint.as_uri())
        return writer.trigger(processingTime="0 seconds").queryName(self._folder.name).start()

    def _ask(self, ranges: Sequence[PlannedRange]) -> None:
        request = self._following()
        self._asked += 1
        written = request.with_suffix(".unfinished")
        written.write_text(json.dumps(replay_end(ranges, self._following())), encoding="utf-8")
        written.rename(request)

    def _following(self) -> Path:
        """Where the next batch will be asked for."""
        assert self._folder is not None  # noqa: S101  (it is there while a query is)
        return self._folder / f"{self._asked + 1}.json"

    def _run_batch(self, df: DataFrame, _batch_id: int) -> None:
        if self._use is None or self._done.is_set():
            return
        try:
            self._use(df)
        except Exception as error:  # noqa: BLE001  (raised again to whoever asked)
            self._raised = error
        self._done.set()

    def _wait(self, query: StreamingQuery) -> None:
        while not self._done.wait(_LOOK_S):
            if not query.isActive:
                raise query.exception() or InterruptedError("The query that reads again was ended.")

    def _end(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _plan_first_batch(checkpoint: Path, end: str) -> None:
    """Write the part of Spark's checkpoint that says which offsets its first batch ends at."""
    times = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0})
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    (checkpoint / "offsets" / "0").write_text("\n".join(["v1", times, end]), encoding="utf-8")
