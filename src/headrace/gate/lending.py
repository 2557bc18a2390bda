"""The one transaction that a handler may be lent for a batch, and what becomes of it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from sqlalchemy import Connection

from headrace.errors import LedgerError
from headrace.gate.batch import Lend
from headrace.ledger.lent import UnknownCommitError


class Lending:
    """What `Batch.transaction` lends within one call of a handler.

    It is lent once. A handler that ends without having committed what it was lent has failed,
    whatever it swallowed; and what it left open is undone.

    Args:
        batch: the batch's key, for errors.
        open_: begins the transaction; its normal end commits.

    Attributes:
        committed: whether it was: then the batch is a success, whatever the handler raises later.
    """

    def __init__(self, batch: str, open_: Lend) -> None:
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
    def lend(self) -> Iterator[Connection]:
        """Lend it.

        Raises:
            LedgerError: at once: it has been lent before, or the handler has returned. At the end:
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
            LedgerError: it has returned, but what it was lent is not committed.
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
        """Lend nothing any more; whether something was still lent, which is undone now."""
        with self._changing:
            self._over = True
            left_open = self._stack is not None and not self.committed and not self._undone_by
        if left_open:
            self._undo(LedgerError("The handler returned."))
        return left_open

    def _undo(self, error: BaseException) -> None:
        self._undone_by = self._undone_by or error
        if self._stack is not None:
            # Each end of it is told of the exception, so that none of them commits.
            self._stack.__exit__(type(error), error, error.__traceback__)
