"""An event loop whose time passes only when there is nothing else to do, and a journal to watch."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal.receivers import Intake, Receipt
from headrace.journal.records import Records

Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")
Arguments = TypeVarTuple("Arguments")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs timers at once, one after the other, as if their time had come.

    A call for a thread runs in the loop instead, and takes `thread_s` of the loop's time.
    """

    def __init__(self) -> None:
        super().__init__(_Selector(self._pass))
        self._now_s = 1_000.0
        self.thread_s = 0.0

    def time(self) -> float:
        return self._now_s

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], Answer],
        *args: *Arguments,
    ) -> asyncio.Future[Answer]:
        done: asyncio.Future[Answer] = self.create_future()

        def run() -> None:
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001  # as a thread's
                done.set_exception(error)

        self.call_later(self.thread_s, run)
        return done

    def _pass(self, time_s: float | None) -> None:
        assert time_s is not None, "nothing would ever happen again: somebody waits for nobody"
        self._now_s += time_s


class _Selector(selectors.DefaultSelector):
    def __init__(self, pass_time: Callable[[float | None], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._pass_time(timeout)
        return ready


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run in a `VirtualLoop` until it ends."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Run a test in a `VirtualLoop`."""

    @functools.wraps(test)
    def in_its_loop(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_its_loop


def now_s() -> float:
    return asyncio.get_running_loop().time()


def thread_takes(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.thread_s = seconds


class Lane:
    """Keeps what is appended, with the times; fails as often as it is told to.

    With `ANSWER_LOST` it has kept the block. With `LATE` it keeps it when the next one comes, as
    a storage may that has timed out, and that one fails, for it would have had the same offset.
    """

    def __init__(self, start: int = 0) -> None:
        self.records: list[Records] = []
        self.times_s: list[float] = []
        self.failures: list[Exception | None] = []
        self.settle_failures: list[Exception | None] = []
        self._next = start
        self._found: list[tuple[list[str | None], OffsetRange]] = []
        self._late: Records | None = None

    def append(self, records: Records) -> OffsetRange:
        if self._late:
            self._keep_unanswered(self._late)
            self._late = None
            raise NAME_TAKEN
        if self.failures and (error := self.failures.pop(0)):
            if error is ANSWER_LOST:
                self._keep_unanswered(records)
            elif error is LATE:
                self._late = records
            raise error
        return self._keep(records)

    def settle(self) -> list[tuple[list[str | None], OffsetRange]]:
        if self.settle_failures and (error := self.settle_failures.pop(0)):
            raise error
        found, self._found = self._found, []
        return found

    def _keep_unanswered(self, records: Records) -> None:
        self._found.append((records.batch.column("id").to_pylist(), self._keep(records)))

    def _keep(self, records: Records) -> OffsetRange:
        offsets = OffsetRange("events", 0, self._next, self._next + records.count)
        self._next = offsets.until
        self.records.append(records)
        self.times_s.append(now_s())
        return offsets

    @property
    def values(self) -> list[bytes]:
        return [value for block in self.records for value in values_of(block)]

    @property
    def sizes(self) -> list[int]:
        return [block.count for block in self.records]


NO_SPACE = JournalError("The disk is full; make room.")
ANSWER_LOST = JournalError("It has timed out; try again.")
LATE = JournalError("It has timed out, and goes on; try again.")
NAME_TAKEN = JournalError("An earlier block is there; try again.")


def records(*values: bytes, ids: list[str | None] | None = None) -> Records:
    return Records.of(values, timestamp_ms=1_000, ids=ids)


async def enter(intake: Intake, records: Records) -> asyncio.Task[Receipt]:
    """Hand in records and wait until they are in the buffer."""
    receipt = intake.submit_nowait(records)
    await intake.buffered(receipt)
    return receipt


def lines(count: int, size: int = 10) -> Records:
    return Records.of_lines(b"".join(b"%0*d\n" % (size, i) for i in range(count)), timestamp_ms=1)


def values_of(block: Records) -> list[bytes]:
    return list(block.batch.column("value").to_pylist())
