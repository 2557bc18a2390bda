"""A batch as its handler sees it, and the transaction that commits with its success."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError
from headrace.ledger.database import UnknownCommitError

OpenTransaction = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its handler sees it.

    Attributes:
        key: the same for every run of the same ranges, another for every other batch; what an
            idempotent sink can write under.
        id: Spark's number of the batch in its query; the same when Spark runs the batch again. None
            where it is not Spark that runs it: in a backfill, and in a child of a batch that was
            split. It rises within one checkpoint only, so no sink may skip by it.
        ranges: the offsets in the batch, by topic and partition; empty where this gate's source had
            nothing new (a query may have other sources, and a first batch may begin at the end).
        attempt: 1 the first time, then counting; without ranges always 1. Where a backfill runs one
            record several times, to see whether others pass meanwhile, these are one attempt.
        kind: ``live``, or ``backfill`` for a batch that had failed.
        sequence: the number of this call of the handler, above that of every call before it of this
            gate: by any process, of any checkpoint, a backfill's or a child's too. Another one when
            the same batch runs again. A sink that keeps the newest by it is right; one that is to
            write each batch once goes by ``key``.
    """

    key: str
    id: int | None
    ranges: tuple[OffsetRange, ...]
    attempt: int
    kind: str
    sequence: int
    _open: OpenTransaction | None = field(default=None, repr=False, compare=False)

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
        if self._open is None:
            raise LedgerError(f"Batch {self.key!r} was made without a ledger, so it lends nothing.")
        return self._open()


Handler = Callable[[DataFrame, Batch], None]


def check_handler(handler: object) -> None:
    """Refuse what cannot be called as ``handler(df, batch)``, before anything is started.

    Raises:
        OptionError: It cannot be called so. What does not say what it takes passes.
    """
    if not callable(handler):
        raise OptionError(
            f"The handler is {handler!r}, which cannot be called; give a function that takes a"
            " DataFrame and the batch: handler(df, batch)."
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


class HandlerTransaction:
    """The one transaction of one call of a handler, which `Batch.transaction` opens.

    A handler that opens it and returns without having committed it has failed, whatever it
    swallowed; and what it left open is undone.

    Args:
        batch: the batch's key, for errors.
        open_: begins the transaction; its normal end commits.

    Attributes:
        committed: whether it was: then the batch is a success, whatever the handler raises later.
    """

    def __init__(self, batch: str, open_: OpenTransaction) -> None:
        self.committed = False
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
            connection = stack.enter_context(self._open())
            yield connection
            stack.close()
        except BaseException as error:
            self._undo(error)
            raise
        self.committed = self._undone_by is None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the handler within.

        Raises:
            LedgerError: it has returned, but the transaction is not committed.
        """
        try:
            yield
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
