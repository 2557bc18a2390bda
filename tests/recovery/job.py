"""Job of a driver; it goes to its process as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from headrace.gate.control.dead import MAX_BACKFILLS

GATE = "orders"


@dataclass(frozen=True)
class Job:
    """A gated query, and what goes wrong in it.

    Attributes:
        servers: the brokers; a journal is read, in whose folder it is, where there are none.
        topic: what is read.
        folder: where checkpoint and sink are; the next driver goes on from there.
        master: Spark's.
        ledger_url: the ledger; that of the folder where it is empty.
        on_failure: ``gate.write``'s, for an exception in the handler that comes again.
        retries: how often the handler is called again before that.
        max_runs: how many runs an isolation may take.
        max_backfills: how many backfills of a batch fail before it is given up; with ``isolate``.
        raises_once_in: of so many calls of the handler with more than one record, one at random
            raises; never, where it is 0.
        poison: the values of records that no batch with them gets through the handler with.
        seed: of what is random.
        records: the query runs until so many have been planned and nothing of them is open any
            more; where it is 0, it processes what is there and ends.
        hurried: whether leases and waits between attempts are short.
        held: the handler does not return from its call of this number, from 1, though it has
            written all there is; from each, where it is 0.
        stop: the process kills itself at the passage of this number, from 1, of this point.
        sink: what remembers which batches it has, by its name in `tests.recovery.sinks`; files that
            are named by their batch, where it is empty.
        sink_url: where that is, if it is a database.
        interval: the gate's.
        state: what the query derives with state, by its name in `tests.recovery.states`.
        decoded: whether the source decodes values, JSON objects with a text ``v``.
    """

    servers: str
    topic: str
    folder: str
    master: str = "local[2]"
    ledger_url: str = ""
    on_failure: Literal["stop", "defer", "isolate"] = "stop"
    retries: int = 0
    max_runs: int = 200
    max_backfills: int = MAX_BACKFILLS
    raises_once_in: int = 0
    poison: tuple[str, ...] = ()
    seed: int = 0
    records: int = 0
    hurried: bool = False
    held: int = 0
    stop: tuple[str, int] | None = None
    sink: str = ""
    sink_url: str = ""
    interval: str = "500 ms"
    decoded: bool = False
    state: str = ""

    @property
    def ledger(self) -> str:
        """The ledger's URL."""
        return self.ledger_url or f"sqlite:///{self.folder}/headrace.db"

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        given = json.loads(text)
        stop = given.pop("stop")
        poison = tuple(given.pop("poison"))
        return cls(**given, poison=poison, stop=None if stop is None else (stop[0], stop[1]))
