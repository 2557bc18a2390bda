"""What a handler is told of the batch it is given."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from headrace.control.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError

Lend = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a handler is told of the batch it is given.

    Attributes:
        key: the same for every run of the same ranges, another for every other batch; what an
            idempotent sink can write under.
        id: Spark's number of the batch in its query; the same when Spark runs the batch again. None
            where it is not Spark that runs it: in a backfill, and in a part of a batch that was
            divided. It rises within one checkpoint only, so no sink may skip by it.
        ranges: the offsets in the batch, by topic and partition; empty where this gate's source had
            nothing new (a query may have other sources, and a first batch may begin at the end).
        attempt: 1 the first time, then counting; without ranges always 1.
        kind: ``live``, or ``backfill`` for a batch that had failed.
        sequence: the number of this call of the handler, above that of every call before it of this
            gate: by any process, of any checkpoint, a backfill's or a part's too. Another one when
            the same batch runs again. A sink that keeps the newest by it is right; one that is to
            write each batch once goes by ``key``.
    """

    key: str
    id: int | None
    ranges: tuple[OffsetRange, ...]
    attempt: int
    kind: str
    sequence: int
    _lend: Lend | None = field(default=None, repr=False, compare=False)

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
        if self._lend is None:
            raise LedgerError(f"Batch {self.key!r} was made without a ledger, so it lends nothing.")
        return self._lend()


Handler = Callable[[DataFrame, Batch], None]


def refuse_unless_a_handler(handler: object) -> None:
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
