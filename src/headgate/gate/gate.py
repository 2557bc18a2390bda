"""A gate: what stands before one source of one query and decides how much it is given."""

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from headgate.backfill import parse_schedule
from headgate.errors import OptionError
from headgate.gate.batch import Handler
from headgate.gate.connectors import connector_of
from headgate.gate.handler import GatedHandler
from headgate.gate.ledgers import keep_books
from headgate.gate.owner import new_owner
from headgate.gate.plans import refuse_if_it_cannot_skip
from headgate.gate.policy import OnFailure, parse_on_failure
from headgate.gate.reader import GatedStreamReader
from headgate.gate.registration import register
from headgate.gate.replay import Replay
from headgate.gate.replay_stream import ReplayStream
from headgate.gate.stream_backfill import GatedStreamWriter, StreamBackfill
from headgate.ledger import normalize_url
from headgate.source.connector import Connector
from headgate.source.values import gate_name, interval_ms


class _Read(NamedTuple):
    """What a reader of a gate has loaded, and how."""

    df: DataFrame
    connector: Connector
    options: Mapping[str, str]


class Gate:
    """The gate of one source in one query.

    It admits per batch what the job can process in one ``interval``, learnt from the batches
    before, and writes down every batch's offsets before the batch runs. A query that reads two
    sources has two gates.

    >>> gate = Gate("orders", interval="1 second", ledger="sqlite:///headgate.db")
    >>> gate
    Gate('orders', interval='1 second')

    Args:
        name: letters, digits, ``_``, ``.`` and ``-``; names the gate in the ledger. Its rate
            belongs to the name: a job that is started again under it goes on with the rate it had.
        interval: how often a batch starts and so how long it should take, as Spark writes it
            (``"1 second"``, ``"500 ms"``), or a `timedelta`; a year at most. Too short, and the
            fixed cost of a batch eats it; too long, and records wait.
        ledger: SQLAlchemy's URL of the database, ``sqlite:///path`` or ``postgresql://...``. A
            relative path begins at the working directory of now.

    Raises:
        OptionError: the name or the interval is not of that form.
        LedgerError: the URL is not a ledger's.
    """

    def __init__(self, name: str, *, interval: str | timedelta, ledger: str) -> None:
        self.name = gate_name("The gate's name", name)
        self.interval_ms = interval_ms("The gate's interval", interval)
        self._interval = interval
        # In full, for the planner is another process.
        self._ledger_url = normalize_url(ledger)
        self._reads: list[_Read] = []

    def __repr__(self) -> str:
        return f"Gate({self.name!r}, interval={self._interval!r})"

    def read(self, spark: SparkSession, source: str) -> DataStreamReader:
        """A reader on the source behind this gate: an ordinary builder.

        Its ``load()`` checks all that can be checked before a query starts.

        Args:
            spark: the session.
            source: ``"kafka"`` or ``"journal"``.

        Raises:
            OptionError: there is no such source; from ``load()``: an option is wrong.
            LedgerError: from ``load()``: the ledger cannot be opened or written.
            BrokerError: from ``load()``: the brokers cannot be reached.
            SourceError: from ``load()``: a topic or partition that is named does not exist.
        """
        connector = connector_of(source)
        register(spark)
        return GatedStreamReader(
            spark,
            connector,
            gate=self.name,
            ledger_url=self._ledger_url,
            interval_ms=self.interval_ms,
            loaded=lambda df, options: self._reads.append(_Read(df, connector, dict(options))),
        )

    def write(
        self,
        df: DataFrame,
        handler: Handler,
        *,
        on_failure: str | OnFailure = "stop",
        backfill: str = "spare",
    ) -> DataStreamWriter:
        """A writer that gives each batch to the handler and its outcome to the ledger.

        The trigger is the gate's interval, and the query is named after the gate; both can be set
        anew on the builder.

        Args:
            df: what to write; derived from `read`.
            handler: called as ``handler(df, batch)`` on the driver, once for each batch and again
                for a batch that a crash interrupted; ``batch.key`` is the same then.
            on_failure: what an exception in the handler does. ``"stop"``: the batch is recorded as
                failed, and the query stops; it runs first when the query is started again.
                ``"defer"``: the stream goes on, and a backfill runs the batch later.
                ``"isolate"``: the batch is halved until the records that cannot be processed stand
                alone; they are kept as dead letters, and everything else is processed now.
                `headgate.retry` calls the handler again first, and `headgate.isolate` sets how much
                isolation may take.
            backfill: when what was deferred is run again, by this application while the query runs:
                ``"spare"``, whenever the stream leaves time; ``"every 10 minutes"``;
                ``"cron 0 3 * * *"``; or ``"by hand"``, with the command ``headgate backfill``. The
                handler is called by another thread then, but never twice at a time.

        Raises:
            OptionError: there is no such policy or schedule, or this stream cannot go on without a
                batch: it is computed with state, or from more than one source.
            LedgerError: the ledger cannot be opened or read.
        """
        policy = parse_on_failure(on_failure)
        schedule = parse_schedule(backfill)
        replay = self._replay(df, policy.last) if policy.skips else None
        ledger = keep_books(self.name, self._ledger_url)
        gated = GatedHandler(self.name, self._ledger_url, handler, policy=policy, replay=replay)
        owner = new_owner()
        beside = StreamBackfill(
            self.name,
            ledger,
            gated.runner(owner),
            owner,
            self.interval_ms,
            schedule,
        )

        def started(query: StreamingQuery) -> None:
            gated.follow(query)
            if policy.skips:
                beside.follow(query)

        return (
            GatedStreamWriter(df, started)
            .foreachBatch(gated)
            .trigger(processingTime=f"{self.interval_ms} milliseconds")
            .queryName(self.name)
        )

    def _replay(self, df: DataFrame, last: str) -> Replay:
        """What reads a batch of this stream once more."""
        refuse_if_it_cannot_skip(df, self.name, last)
        if not self._reads:
            raise OptionError(
                f"on_failure is {last!r}, but the gate {self.name!r} has read nothing; write what"
                " gate.read(...).load() gave, or what is derived from it."
            )
        for read in self._reads:
            if df.sameSemantics(read.df):
                return Replay(df.sparkSession, read.connector, read.options)
        if len(self._reads) > 1:
            raise OptionError(
                f"on_failure is {last!r}, but the gate {self.name!r} has been read"
                f" {len(self._reads)} times, and which of these is written cannot be told; make a"
                " gate for each."
            )
        (read,) = self._reads
        return Replay(df.sparkSession, read.connector, read.options, derived=ReplayStream(df))
