"""A batch as its handler sees it, and the transaction that commits with its success."""

import concurrent.futures
import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange
from headrace.errors import (
    DataLossError,
    LedgerError,
    OptionError,
    RejectionError,
    TooManyRejectedError,
)
from headrace.gate.execution import sinks
from headrace.gate.execution.rejections import Rejections
from headrace.gate.ledger.database import UnknownCommitError

if TYPE_CHECKING:
    from pyiceberg.table import Table

OpenTransaction = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its handler sees it.

    Functions that run in tasks, as those of ``df.foreachPartition``, get a copy of its values. The
    methods that write or reject need the driver: they refuse to be called on such a copy.

    Attributes:
        key: the same for every run of the same ranges, another for every other batch; what an
            idempotent sink can write under.
        id: Spark's number of the batch in its query; the same when Spark runs the batch again. None
            where it is not Spark that runs it: in a backfill, and for a part of a batch. It rises
            within one checkpoint only, so no sink may skip by it.
        ranges: the offsets in the batch, by topic and partition; empty where this gate's source had
            nothing new (a query may have other sources, and a first batch may begin at the end).
        attempt: 1 the first time, then counting; without ranges always 1. Where a backfill runs one
            record several times, to see whether others pass meanwhile, these are one attempt.
        kind: ``live``, or ``backfill`` for a batch that had failed.
        sequence: the number of this call of the handler, above that of every call before it of this
            gate: by any process, of any checkpoint, a backfill's or a part's too. Another one when
            the same batch runs again. A sink that keeps the newest by it is right; one that is to
            write each batch once goes by ``key``.
        parent_keys: of a part, the keys of what it is within, the nearest first; empty for a whole
            batch. A batch that has failed may be in the sink nevertheless, when its handler raised
            after its write: a sink that is written under keys replaces theirs.
    """

    key: str
    id: int | None
    ranges: tuple[OffsetRange, ...]
    attempt: int
    kind: str
    sequence: int
    parent_keys: tuple[str, ...] = ()
    _run: "HandlerTransaction | None" = field(default=None, init=False, repr=False, compare=False)
    _is_copy: bool = field(default=False, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., "Batch"], tuple[object, ...]]:
        """Pickle the values alone, for tasks: the ledger and the session stay on the driver."""
        values = tuple(getattr(self, each.name) for each in fields(self) if each.init)
        return _unpickled, values

    def transaction(self) -> AbstractContextManager[Connection]:
        """A connection to the ledger's database, in one transaction with the batch's success.

        For a sink that is in that database: what is written through the connection is durable
        together with the batch's ``success``, or neither is. It is committed at the end of the
        ``with``, which is to be the last thing that the handler does. An exception that leaves the
        ``with`` undoes everything, and the batch has failed, even if the handler catches it outside
        the ``with``. One that is raised after the ``with`` changes nothing of the batch: it is kept
        with it, and the batch is not run again; ``on_failure="stop"`` ends the query.

        Savepoints (``connection.begin_nested()``) can be used. On SQLite nothing else can write
        meanwhile: read and compute before.

        >>> def handler(df, batch):
        ...     rows = [row.asDict() for row in df.collect()]
        ...     with batch.transaction() as connection:
        ...         connection.execute(insert(orders), rows)

        Raises:
            LedgerError: at once: it is used a second time, the handler has returned, or it was made
                without a ledger. At once, within: ``connection.commit()``, ``rollback()`` and
                ``close()``, which the end of the ``with`` does. At the end: the batch is not this
                process's any more, or the database failed; nothing is written then.
        """
        self._require_driver("transaction")
        if self._run is None:
            raise LedgerError(f"Batch {self.key!r} was made without a ledger, so it lends nothing.")
        return self._run.open()

    def once(self, connection: Connection, name: str = "") -> bool:
        """Whether this batch is still to be written into a database; it counts as written then.

        For any database that SQLAlchemy knows. The answer is True once for each batch whose
        transaction commits, whatever ran in between: the key goes into the table
        ``headrace_batches``, which is made if it is missing, in the connection's transaction. So
        key and rows are durable together, or neither is. Another run of the same batch waits in
        PostgreSQL until this transaction ends, and in SQLite until the file is free.

        A part of a batch counts as written if what it is within is. Such a batch has failed
        although it was committed: the answer to the commit was lost, or the handler raised after
        it. And a batch is not written once parts of it are: a process that was frozen for longer
        than its lease may try.

        >>> def handler(df, batch):
        ...     rows = [row.asDict() for row in df.collect()]
        ...     with engine.begin() as connection:
        ...         if batch.once(connection):
        ...             connection.execute(insert(orders), rows)

        Args:
            connection: with a transaction, which the caller commits.
            name: tells several writes of one handler into one database apart, each in a
                transaction of its own. Default: "".

        Raises:
            OptionError: the connection commits each statement by itself.
            BatchSplitError: parts of the batch are written already.
            SQLAlchemyError: what the database raises, such as that another transaction had the
                key and this one is too strict to go on (``SERIALIZABLE``): run the batch again.
        """
        self._require_driver("once")
        is_new = sinks.once(connection, (self.key, *self.parent_keys), name)
        self._note_asked()
        return is_new

    def delta_options(self, name: str = "") -> dict[str, str]:
        """Options of a write into a Delta table, by which the table has this batch once.

        They are ``txnAppId``, an id of this batch's own, and ``txnVersion``, the same for all: the
        table skips a batch that it has, and no other, in whatever order they come. Two runs at a
        time are one write too: the later commit fails as a conflict.

        >>> def handler(df, batch):
        ...     options = batch.delta_options()
        ...     df.write.format("delta").mode("append").options(**options).save("lake/orders")

        Args:
            name: tells several writes of one handler into one table apart: the table would skip
                the second otherwise. Default: "".
        """
        return sinks.delta_options(self.key, name)

    def append_iceberg(self, df: DataFrame, table: "Table", name: str = "") -> bool:
        """Append the batch's rows to an Iceberg table, unless it has them; whether it had not.

        The rows and a property of the snapshot with the batch's key are one commit. The table has a
        batch if its current snapshot or one of that snapshot's ancestors has the key. This is
        checked before the write, and again in each commit, so two runs at a time are one write too.
        Nor is a part written if what it is within is there, or a batch if a part of it is.
        A batch whose snapshot was expired or rolled back is written again when it runs
        again.

        The rows pass through the driver's memory, as Arrow. PyIceberg writes them (``pip install
        'headrace[iceberg]'``), for Iceberg has no jar for this Spark.

        >>> def handler(df, batch):
        ...     batch.append_iceberg(df, catalog.load_table("shop.orders"))

        Args:
            df: with the table's columns.
            table: PyIceberg's, with its main branch; it is refreshed.
            name: tells several writes of one handler into one table apart. Default: "".

        Raises:
            BatchSplitError: parts of the batch are in the table already.
            Exception: what PyIceberg or Spark raises. If nobody knows what became of the commit,
                the next run finds out.
        """
        self._require_driver("append_iceberg")
        keys = (self.key, *self.parent_keys)
        return sinks.append_iceberg(df, table, keys, name, asked=self._note_asked)

    def kafka_headers(self, *columns: str) -> Column:
        """A column ``headers`` for a Kafka sink, by which readers of its topic can drop copies.

        A Kafka sink writes at least once, and this changes nothing of it: all copies of a row have
        the same header ``headrace-record``, the columns as JSON, such as
        ``{"topic":"orders","partition":0,"offset":1042}``, and a reader that keeps one of each has
        each row once. Another header, ``headrace-batch-key``, names the batch that has written the
        copy; a copy may have another one, for a part of a batch has a key of its own.

        >>> def handler(df, batch):
        ...     headers = batch.kafka_headers("topic", "partition", "offset")
        ...     rows = df.select("value", headers.alias("headers"))
        ...     rows.write.format("headrace-kafka").mode("append").options(**kafka).save()

        Args:
            columns: names of those that tell each row from every other, in every batch: where the
                record was read, and what else tells apart the rows that one record became.

        Raises:
            OptionError: there are no columns.
        """
        self._require_driver("kafka_headers")
        return sinks.kafka_headers(self.key, columns)

    def reject(self, rows: DataFrame | Iterable[object], reason: str | Column) -> None:
        """Keep records of this batch as dead letters: they cannot be processed, and it goes on.

        They become durable together with the batch's success, also with `transaction`; if this run
        fails, they are forgotten. Each is read from the source once more and kept as it is there,
        with key, value and headers. `headrace.isolate`'s topic receives them after the commit. A
        record that is rejected twice is one dead letter, with the first reason.

        >>> def handler(df, batch):
        ...     batch.reject(df.where("amount IS NULL"), "it has no amount")
        ...     df.where("amount IS NOT NULL").write.saveAsTable("orders")

        Args:
            rows: a DataFrame with the columns topic, partition and offset, which is computed now;
                or rows, dicts, or tuples, that have these three. At most 10 000 in one run of a
                batch: more are a failure of the batch.
            reason: one sentence, which the dead letters have as their error; of a DataFrame also a
                column of strings, such as ``F.col("reason")``. Do not put a record's value into it.

        Raises:
            RejectionError: a row is not of this batch, or has no such columns; nothing of ``rows``
                is rejected then.
            OptionError: there are too many; the same.
            LedgerError: the batch is committed already, or its handler has returned.
        """
        self._require_driver("reject")
        if self._run is None:
            raise LedgerError(f"Batch {self.key!r} was made without a ledger, so it keeps nothing.")
        self._run.reject(rows, reason)

    def _require_driver(self, method: str) -> None:
        if self._is_copy:
            raise OptionError(
                f"batch.{method}() is called on a copy of batch {self.key}, as a task on an"
                " executor has it; call it in the handler, on the driver."
            )

    def _note_asked(self) -> None:
        if self._run is not None:
            self._run.asked = True


Handler = Callable[[DataFrame, Batch], None]


def _unpickled(*values: Any) -> Batch:
    batch = Batch(*values)
    object.__setattr__(batch, "_is_copy", True)
    return batch


def bind(batch: Batch, run: "HandlerTransaction | None") -> Batch:
    """Have the methods of a new batch write for this call of its handler; return the batch."""
    object.__setattr__(batch, "_run", run)
    return batch


def renumber(batch: Batch, sequence: int) -> Batch:
    """Return the same batch for the same call of its handler, with another number of that call."""
    return bind(replace(batch, sequence=sequence), batch._run)


def check_handler(handler: object) -> None:
    """Refuse what cannot be called as ``handler(df, batch)``, before anything is started.

    Raises:
        OptionError: It cannot be called so, or its call would not run its body. What does not say
            what it takes passes.
    """
    if not callable(handler):
        raise OptionError(
            f"The handler is {handler!r}, which cannot be called; give a function that takes a"
            " DataFrame and the batch: handler(df, batch)."
        )
    if kind := _kind_of_unrun(handler):
        raise OptionError(
            f"The handler is {handler!r}, {kind}, whose call does not run it, so nothing would be"
            f" written; {_WRITE_FIRST}."
        )
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(handler, "__name__", None) or repr(handler)
        raise OptionError(
            f"The handler is {name}{signature}, and is called with two arguments, a DataFrame and"
            f" the batch ({error}); write it as handler(df, batch)."
        ) from error


_WRITE_FIRST: Final = (
    "write a plain function that has written the batch when it returns, such as one that calls"
    " asyncio.run() or waits for its futures"
)


def _kind_of_unrun(handler: object) -> str | None:
    """Return what kind of function a call of the handler would not run; None for no such kind."""
    while isinstance(handler, partial):
        handler = handler.func
    for function in (handler, type(handler).__call__):
        if inspect.iscoroutinefunction(function):
            return "an async function"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return "a generator function"
    return None


def refuse_unrun(answer: object) -> None:
    """Refuse an answer of a handler that says that the batch is not written yet.

    Such a batch would be a success of which nothing was written.

    Raises:
        OptionError: It is a coroutine or another awaitable, a future or a generator.
    """
    is_unrun = (
        inspect.isawaitable(answer)
        or inspect.isgenerator(answer)
        or inspect.isasyncgen(answer)
        or isinstance(answer, concurrent.futures.Future)
    )
    if not is_unrun:
        return
    if inspect.iscoroutine(answer):
        answer.close()  # without Python's warning that nobody has awaited it
    raise OptionError(
        f"The handler has returned an object of type {type(answer).__name__}, whose work nobody"
        f" waits for, so the batch is not written; {_WRITE_FIRST}."
    )


def call_handler(handler: Callable[..., object], df: DataFrame, batch: Batch) -> None:
    """Call a handler with a batch.

    Warns where it returns a DataFrame: it may be one that it has written, or one that nobody
    writes, whose records are nowhere.

    Raises:
        OptionError: It has returned before its work is done.
        Exception: Whatever it raises.
    """
    answer = handler(df, batch)
    refuse_unrun(answer)
    if isinstance(answer, DataFrame):
        warnings.warn(
            "The handler has returned a DataFrame, which nothing writes; write it in the handler,"
            " as with df.write, and return nothing.",
            stacklevel=2,
        )


class HandlerTransaction:
    """The one transaction of one call of a handler, which `Batch.transaction` opens.

    A handler that opens it and returns without having committed it has failed, whatever it
    swallowed; and what it left open is undone.

    Args:
        batch: the batch's key, for errors.
        open_: begins the transaction; its normal end commits, with what was rejected.
        rejections: what the handler rejects.

    Attributes:
        committed: whether it was: then the batch is a success, whatever the handler raises later.
        asked: whether a sink was asked that knows which batches it has, and writes no part beside
            the whole. Then what an earlier run left there does no harm, whatever became of that.
    """

    def __init__(self, batch: str, open_: OpenTransaction, rejections: Rejections) -> None:
        self.committed = False
        self.asked = False
        self.rejections: Final = rejections
        self._batch: Final = batch
        self._open: Final = open_
        self._changing: Final = threading.Lock()
        self._stack: ExitStack | None = None
        self._undone_by: BaseException | None = None
        self._over = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether the answer to the commit was lost."""
        return isinstance(self._undone_by, UnknownCommitError)

    @contextmanager
    def open(self) -> Iterator[Connection]:
        """Begin the transaction.

        Raises:
            LedgerError: at once: it was opened before, or the handler has returned. At the end:
                it cannot be committed; then it is undone.
        """
        stack = self._claim()
        try:
            self.rejections.read()  # now, for at its end a ledger in a file is locked
            connection = stack.enter_context(self._open())
            self.asked = True  # The batch would be a success if an earlier run had committed it.
            yield connection
            stack.close()
        except BaseException as error:
            self._undo(error)
            raise
        self.committed = self._undone_by is None

    def reject(self, rows: DataFrame | Iterable[object], reason: str | Column) -> None:
        """Do what `Batch.reject` does.

        Raises:
            LedgerError: the batch is committed already, or its handler has returned.
        """
        if self._over or self.committed:
            raise LedgerError(
                f"Batch {self._batch} is committed, or its handler has returned, so nothing of it"
                " is rejected any more; reject before the end of `with batch.transaction()`."
            )
        self.rejections.add(rows, reason)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the handler within; what it rejected is committed with the batch's success.

        Raises:
            LedgerError: it has returned, but the transaction is not committed.
        """
        try:
            with self.rejections.of_jobs():
                yield
                self._keep_rejected()
        finally:
            left_open = self._end()
        if self._stack is None or self.committed:
            return
        if self._undone_by is not None and self.is_in_doubt:
            raise self._undone_by
        if left_open:
            raise LedgerError(
                f"The handler of batch {self._batch} has returned with batch.transaction() open,"
                " and what was written in it is undone; use it as `with batch.transaction() as"
                " connection:`."
            )
        raise LedgerError(
            f"The handler of batch {self._batch} has returned, but its batch.transaction() was not"
            " committed: an exception that left the `with` was caught around it. Let it pass, so"
            " that the batch is run again."
        ) from self._undone_by

    def _keep_rejected(self) -> None:
        """Commit what was rejected, of a handler that has returned.

        Raises:
            RejectionError: that cannot be kept. The sink may have the others of the batch, which is
                therefore run again as a whole, and not in parts.
            OptionError: the schema is at fault, and not the records.
        """
        try:
            self._commit_rejected()
        except (RejectionError, TooManyRejectedError, DataLossError) as error:
            raise RejectionError(
                f"The handler of batch {self._batch} has returned, and what it rejected cannot be"
                f" kept, so the whole batch is run again: {error}"
            ) from None

    def _commit_rejected(self) -> None:
        kept = len(self.rejections.kept)
        number = self.rejections.count()
        if self._stack is None and number:
            with self.open():
                pass
        elif self.committed and number > kept:
            raise LedgerError(
                f"The handler of batch {self._batch} has decoded records after the commit of its"
                f" batch.transaction(), and {number - kept} of them do not fit and are not kept;"
                " compute all that headrace.decode gives before the `with` ends."
            )

    def _claim(self) -> ExitStack:
        with self._changing:
            if self._over:
                raise LedgerError(
                    f"The handler of batch {self._batch} has returned, so batch.transaction() lends"
                    " nothing any more; use it within the handler."
                )
            if self._stack is not None:
                raise LedgerError(
                    f"batch.transaction() of batch {self._batch} is used a second time; it is one"
                    " transaction with the batch's success, so write everything within one `with`"
                    " (connection.begin_nested() makes savepoints in it)."
                )
            self._stack = ExitStack()
            return self._stack

    def _end(self) -> bool:
        """Open nothing any more; whether the transaction was still open, which is undone now."""
        with self._changing:
            self._over = True
            left_open = self._stack is not None and not self.committed and not self._undone_by
        if left_open:
            self._undo(LedgerError("The handler returned."))
        return left_open

    def _undo(self, error: BaseException) -> None:
        self._undone_by = self._undone_by or error
        if self._stack is not None:
            # Each end of it receives the exception, so that none of them commits.
            self._stack.__exit__(type(error), error, error.__traceback__)
