"""`Batch`, the second argument of a handler, and the transaction that stores a batch's success."""

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
    """Batch that a handler processes: its key, ranges and number, and methods for exact sinks.

    Functions that run in tasks, such as in ``df.foreachPartition``, get a copy of the batch with
    the attributes below. Methods that write or reject work only on the driver; on a copy, they
    raise an exception.

    Attributes:
        key: key of the batch for idempotent sinks. It is the same for every run of the same ranges,
            and different for every other batch.
        id: Spark's number of the batch in its query; the same when Spark runs the batch again. None
            in a backfill, and for a part of a batch. It rises only within one checkpoint, so a sink
            must not use it to skip batches.
        ranges: the offsets in the batch, by topic and partition; empty if this gate's source had
            nothing new. This happens if the query has other sources, or in a first batch that
            starts at the end of the topic.
        attempt: number of the attempt to process the batch, from 1; always 1 without ranges. If a
            backfill runs one record several times as a test, these runs are one attempt.
        kind: ``live`` for a batch of the stream; ``backfill`` for a failed batch that runs again.
        sequence: number of this call of the handler. It is higher than the number of every earlier
            call for this gate, including calls in other processes, with other checkpoints, in
            backfills and for parts. Each run of a batch has its own number. Use it for a sink that
            keeps the newest version; use ``key`` for a sink that writes each batch once.
        parent_keys: for a part, the keys of the enclosing parts and of the batch, the nearest
            first; empty for a whole batch. Rows of a failed batch may be in the sink, if the
            handler raised an exception after the write. So a sink that stores rows by key must
            replace the rows of these keys.
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
        """Pickle only the attributes, for tasks. The ledger and the session stay on the driver."""
        values = tuple(
            getattr(self, attribute.name) for attribute in fields(self) if attribute.init
        )
        return _unpickled, values

    def transaction(self) -> AbstractContextManager[Connection]:
        """Open a transaction that includes the batch's success, in the ledger's database.

        Use it for a sink in that database: rows written through the yielded connection become
        durable together with the batch's ``success``, or not at all. The transaction is committed
        at the end of the ``with``, which should be the last statement of the handler. An exception
        that leaves the ``with`` rolls everything back, and the batch has failed, even if the
        handler catches the exception outside the ``with``. After the ``with``, the batch stays a
        success, even if the handler raises an exception later. Such an exception is stored with the
        batch, and ends the query if ``on_failure="stop"``.

        Savepoints (``connection.begin_nested()``) are allowed. On SQLite, no other connection can
        write during the transaction, so read and compute before it.

        >>> def handler(df, batch):
        ...     rows = [row.asDict() for row in df.collect()]
        ...     with batch.transaction() as connection:
        ...         connection.execute(insert(orders), rows)

        Raises:
            LedgerError: at the beginning of the ``with``, if the method is used a second time, the
                handler has returned, or the batch was made without a ledger. Within the ``with``,
                for ``connection.commit()``, ``rollback()`` and ``close()``. At its end, if this
                process no longer owns the batch, or the database failed; then nothing is written.
        """
        self._require_driver("transaction")
        if self._run is None:
            raise LedgerError(
                f"Batch {self.key!r} was made without a ledger, so"
                " batch.transaction() cannot be opened."
            )
        return self._run.open()

    def once(self, connection: Connection, name: str = "") -> bool:
        """Mark this batch as written in a database. Return whether the caller must write it.

        This works with any database that SQLAlchemy supports. The call inserts the batch's key into
        the table ``headrace_batches``, which is created if missing, in the connection's
        transaction. So key and rows become durable together, or not at all. For each batch, the
        result is True in exactly one committed transaction. Another run of the same batch waits in
        PostgreSQL until this transaction ends, and in SQLite until the file is free.

        A part of a batch counts as written if an enclosing part or the batch is written. This
        happens if a batch counts as failed although it was committed: the answer to the commit was
        lost, or the handler raised an exception after the commit. If a part is written already, the
        call for the whole batch raises `BatchSplitError`. A process can make this call if it was
        frozen for longer than its lease.

        >>> def handler(df, batch):
        ...     rows = [row.asDict() for row in df.collect()]
        ...     with engine.begin() as connection:
        ...         if batch.once(connection):
        ...             connection.execute(insert(orders), rows)

        Args:
            connection: a connection with a transaction, which the caller commits.
            name: distinguishes several writes of one handler into one database, if each has its own
                transaction. Default: "".

        Raises:
            OptionError: the connection commits each statement by itself.
            BatchSplitError: parts of the batch are written already.
            SQLAlchemyError: any error of the database, such as a serialization failure under
                ``SERIALIZABLE`` if another transaction has inserted the key. Let it pass, so that
                the batch is run again.
        """
        self._require_driver("once")
        is_new = sinks.once(connection, (self.key, *self.parent_keys), name)
        self._note_asked()
        return is_new

    def delta_options(self, name: str = "") -> dict[str, str]:
        """Return options for a write into a Delta table, so that the table stores this batch once.

        ``txnAppId`` is a unique id of this batch, and ``txnVersion`` is the same for all batches.
        So the table skips exactly the batches that it already has, in any order. Of two
        simultaneous runs, the later commit fails with a conflict.

        >>> def handler(df, batch):
        ...     options = batch.delta_options()
        ...     df.write.format("delta").mode("append").options(**options).save("lake/orders")

        Args:
            name: distinguishes several writes of one handler into one table. With equal names, the
                table would skip the second write. Default: "".
        """
        return sinks.delta_options(self.key, name)

    def append_iceberg(self, df: DataFrame, table: "Table", name: str = "") -> bool:
        """Append the batch's rows to an Iceberg table once. Return whether this call appended them.

        One commit adds the rows and a snapshot property with the batch's key. The table has a
        batch if its current snapshot or one of that snapshot's ancestors has the key. The key is
        checked before the write and again in each commit, so even two simultaneous runs write once.
        A part is not written if the table has an enclosing part or the batch. A batch is refused if
        the table has a part of it. A batch whose snapshot was expired or rolled back is written
        again when it runs again.

        PyIceberg writes the rows (``pip install 'headrace[iceberg]'``), because there is no Iceberg
        jar for this version of Spark. So the rows pass through the driver's memory, as Arrow.

        >>> def handler(df, batch):
        ...     batch.append_iceberg(df, catalog.load_table("shop.orders"))

        Args:
            df: a DataFrame with the table's columns.
            table: a PyIceberg table. Its main branch is written, and the object is refreshed.
            name: distinguishes several writes of one handler into one table. Default: "".

        Raises:
            BatchSplitError: parts of the batch are in the table already.
            Exception: any error of PyIceberg or Spark. If the outcome of a commit is unknown, the
                next run finds out whether it succeeded.
        """
        self._require_driver("append_iceberg")
        keys = (self.key, *self.parent_keys)
        return sinks.append_iceberg(df, table, keys, name, asked=self._note_asked)

    def kafka_headers(self, *columns: str) -> Column:
        """Return a column ``headers`` for a Kafka sink, so that consumers can drop duplicates.

        A Kafka sink still writes at least once. All copies of a row have the same header
        ``headrace-record``: the columns as JSON, such as
        ``{"topic":"orders","partition":0,"offset":1042}``. A consumer that keeps one copy per
        header value has each row once. A second header, ``headrace-batch-key``, names the batch
        that wrote the copy. The key may differ between copies, because a part of a batch has its
        own key.

        >>> def handler(df, batch):
        ...     headers = batch.kafka_headers("topic", "partition", "offset")
        ...     rows = df.select("value", headers.alias("headers"))
        ...     rows.write.format("headrace-kafka").mode("append").options(**kafka).save()

        Args:
            columns: names of the columns that identify a row: topic, partition and offset of the
                source record, and a column that distinguishes several rows of one record, if any.

        Raises:
            OptionError: there are no columns.
        """
        self._require_driver("kafka_headers")
        return sinks.kafka_headers(self.key, columns)

    def reject(self, rows: DataFrame | Iterable[object], reason: str | Column) -> None:
        """Keep records of this batch as dead letters, because they cannot be processed.

        The batch continues with the other records. The dead letters become durable together with
        the batch's success, whether or not the handler uses `transaction`. If this run fails, they
        are discarded. Headrace reads each record from the source again, and stores it unchanged
        with key, value and headers. After the commit, the dead letters are also sent to the topic
        of `headrace.isolate`. A record that is rejected twice becomes one dead letter, with the
        first reason.

        >>> def handler(df, batch):
        ...     batch.reject(df.where("amount IS NULL"), "it has no amount")
        ...     df.where("amount IS NOT NULL").write.saveAsTable("orders")

        Args:
            rows: a DataFrame with the columns topic, partition and offset; the call computes the
                DataFrame. Or rows, dicts, or tuples with these three values. If one run of a batch
                rejects more than 10 000 records, the batch fails.
            reason: one sentence, which becomes the error of the dead letters. For a DataFrame, it
                may be a column of strings, such as ``F.col("reason")``. It must not contain values
                of the record.

        Raises:
            RejectionError: a row is not of this batch, or lacks a column; then none of ``rows`` is
                rejected.
            OptionError: there are too many rows; then none of ``rows`` is rejected.
            LedgerError: the batch is committed already, or its handler has returned.
        """
        self._require_driver("reject")
        if self._run is None:
            raise LedgerError(
                f"Batch {self.key!r} was made without a ledger, so it cannot store dead letters."
            )
        self._run.reject(rows, reason)

    def _require_driver(self, method: str) -> None:
        if self._is_copy:
            raise OptionError(
                f"batch.{method}() is called on a copy of batch {self.key}, probably in a task on"
                " an executor; call it in the handler, on the driver."
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
    """Bind a new batch to a handler call, so that the batch's methods work. Return the batch."""
    object.__setattr__(batch, "_run", run)
    return batch


def renumber(batch: Batch, sequence: int) -> Batch:
    """Return a copy of a batch, for the same handler call, with another sequence number."""
    return bind(replace(batch, sequence=sequence), batch._run)


def check_handler(handler: object) -> None:
    """Check that a handler can be called as ``handler(df, batch)``, before the query starts.

    A callable without a readable signature passes.

    Raises:
        OptionError: The handler does not take two arguments, or a call would not run its body, as
            for an async function.
    """
    if not callable(handler):
        raise OptionError(
            f"The handler is {handler!r}, which cannot be called; give a function that takes a"
            " DataFrame and the batch: handler(df, batch)."
        )
    if kind := _kind_of_unrun(handler):
        raise OptionError(
            f"The handler is {handler!r}, {kind}: calling it does not run its code, so nothing"
            f" would be written; {_WRITE_FIRST}."
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
    """Return "an async function" or "a generator function", if a handler is one; else None."""
    while isinstance(handler, partial):
        handler = handler.func
    for function in (handler, type(handler).__call__):
        if inspect.iscoroutinefunction(function):
            return "an async function"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return "a generator function"
    return None


def refuse_unrun(answer: object) -> None:
    """Check that a handler's return value is not unfinished work, such as a coroutine.

    With unfinished work, the batch would become a success although nothing was written.

    Raises:
        OptionError: The value is a coroutine or another awaitable, a future or a generator.
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
        answer.close()  # prevents Python's warning of a coroutine that was never awaited
    raise OptionError(
        f"The handler has returned an object of type {type(answer).__name__}, and Headrace does not"
        f" wait for its work, so the batch counts as not written; {_WRITE_FIRST}."
    )


def call_handler(handler: Callable[..., object], df: DataFrame, batch: Batch) -> None:
    """Call a handler with a batch.

    Warn if the handler returns a DataFrame. Headrace ignores the returned DataFrame, so its records
    are lost if the handler has not written them.

    Raises:
        OptionError: The handler has returned unfinished work, such as a coroutine.
        Exception: Any exception of the handler.
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
    """Transaction of one handler call. `Batch.transaction` can open it once.

    A handler that opens the transaction and returns without a commit has failed, even if it has
    caught an exception. A transaction that is still open is rolled back.

    Args:
        batch: the batch's key, for error messages.
        open_: function that begins the transaction. The normal end of its ``with`` block commits
            the transaction, together with the rejections.
        rejections: records that the handler has rejected.

    Attributes:
        committed: whether the transaction is committed. The batch is then a success, even if the
            handler raises an exception later.
        asked: whether the handler has asked its sink for the batch's key, for example with
            `Batch.once`. A sink that checks keys stores the records once, so the batch may run
            again even if an earlier run has written some of them.
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
        """Whether the commit was sent, but its answer was lost."""
        return isinstance(self._undone_by, UnknownCommitError)

    @contextmanager
    def open(self) -> Iterator[Connection]:
        """Begin the transaction, and commit it at the end of the ``with``.

        Raises `LedgerError` at the beginning, if the transaction was opened before, or the handler
        has returned. Raises it at the end, if the commit fails; the transaction is then rolled
        back.
        """
        stack = self._claim()
        try:
            self.rejections.read()  # now: at the transaction's end a SQLite ledger is locked
            connection = stack.enter_context(self._open())
            self.asked = True  # The batch would be a success if an earlier run had committed it.
            yield connection
            stack.close()
        except BaseException as error:
            self._undo(error)
            raise
        self.committed = self._undone_by is None

    def reject(self, rows: DataFrame | Iterable[object], reason: str | Column) -> None:
        """Record rejections, as `Batch.reject` does.

        Raises `LedgerError` if the batch is committed already, or its handler has returned.
        """
        if self._over or self.committed:
            raise LedgerError(
                f"Batch {self._batch} is committed, or its handler has returned, so its records can"
                " no longer be rejected; reject before the end of `with batch.transaction()`."
            )
        self.rejections.add(rows, reason)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the handler in the ``with`` block, then commit the batch's success and rejections.

        Raises `LedgerError` if the handler has opened the transaction and returned without a
        commit.
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
                f"The handler of batch {self._batch} has returned with batch.transaction() open, so"
                " its writes were rolled back; use it as `with batch.transaction() as"
                " connection:`."
            )
        raise LedgerError(
            f"The handler of batch {self._batch} has returned, but its batch.transaction() was not"
            " committed: the handler caught an exception that had left the `with`; do not catch"
            " this exception, so that the batch is run again."
        ) from self._undone_by

    def _keep_rejected(self) -> None:
        """Commit the rejections of a handler that has returned.

        Raises `RejectionError` if the rejections cannot be stored. The whole batch is then run
        again, never in parts, because the sink may have the other records. Raises `OptionError` if
        the schema is at fault, and not the records.
        """
        try:
            self._commit_rejected()
        except (RejectionError, TooManyRejectedError, DataLossError) as error:
            raise RejectionError(
                f"The handler of batch {self._batch} has returned, but the records that it rejected"
                f" cannot be stored, so the whole batch is run again: {error}"
            ) from None

    def _commit_rejected(self) -> None:
        kept = len(self.rejections.kept)
        number = self.rejections.count()
        if self._stack is None and number:
            with self.open():
                pass
        elif self.committed and number > kept:
            raise LedgerError(
                f"The handler of batch {self._batch} has computed headrace.decode after its"
                " batch.transaction() was committed, so the values that do not fit the schema"
                f" ({number - kept}) cannot be stored as dead letters; compute the whole result"
                " before the `with` ends."
            )

    def _claim(self) -> ExitStack:
        with self._changing:
            if self._over:
                raise LedgerError(
                    f"The handler of batch {self._batch} has returned, so batch.transaction() can"
                    " no longer be opened; use it within the handler."
                )
            if self._stack is not None:
                raise LedgerError(
                    f"batch.transaction() of batch {self._batch} is used a second time, but a batch"
                    " has only one transaction; write everything within one `with`, and use"
                    " connection.begin_nested() for savepoints."
                )
            self._stack = ExitStack()
            return self._stack

    def _end(self) -> bool:
        """Refuse further transactions. Roll back an open one, and return whether it was open."""
        with self._changing:
            self._over = True
            left_open = self._stack is not None and not self.committed and not self._undone_by
        if left_open:
            self._undo(LedgerError("The handler returned."))
        return left_open

    def _undo(self, error: BaseException) -> None:
        self._undone_by = self._undone_by or error
        if self._stack is not None:
            # Each context manager receives the exception, so that none of them commits.
            self._stack.__exit__(type(error), error, error.__traceback__)
