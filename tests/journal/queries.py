"""Streaming queries of journals without Spark: each batch is planned, and read by its tasks."""

import json
from typing import Any, Final

from headrace.gate.source.readers import SourceStreamReader
from headrace.journal.journal_options import parse_options
from headrace.journal.journal_source import JournalReading

_QUERIES: Final[list["Query"]] = []


def stop_queries() -> None:
    """Stop every query, or its planner would renew its lease while other tests run."""
    while _QUERIES:
        _QUERIES.pop().stop()


class Query:
    """A query of the journal at a path or URL; ``offset`` is what its checkpoint has."""

    def __init__(self, url: object, **options: object) -> None:
        given = {"path": str(url)} | {name: str(value) for name, value in options.items()}
        reading = JournalReading(parse_options(given, streaming=True), ("offset", "value"), 2)
        self._reading = reading
        self._reader = SourceStreamReader(self._reading, None)
        self.offset: dict[str, Any] = self._reader.first_offset()
        _QUERIES.append(self)

    def stop(self) -> None:
        self._reader.stop()

    def start_again(self) -> None:
        """Forget everything besides the checkpoint, as a new process does."""
        self.stop()
        self._reader = SourceStreamReader(self._reading, None)

    def run(self) -> list[str]:
        """The values of the next batch, in order."""
        return [*self.run_batch().values()]

    def run_batch(self) -> dict[int, str]:
        """The same, by offset."""
        reader = self._reader
        end = reader.next_offset(self.offset, everything=False)
        found: dict[int, str] = {}
        if end != self.offset:
            for task in reader.tasks(self.offset, end):
                for batch in reader.read(task):
                    rows = batch.to_pydict()
                    values = [value.decode() for value in rows["value"]]
                    found |= dict(zip(rows["offset"], values, strict=True))
        self.offset = json.loads(json.dumps(end))
        return found
