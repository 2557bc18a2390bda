"""The rates at which records are let in, for those who wait in line for it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headrace.control import TokenBucket
from headrace.receivers.portion import Portion

_PORTION_S: Final = 0.1
"""The seconds' worth of records that are let in at once. More, and a changed rate finds larger
portions on their way; less, and the work for each portion tells."""


class Limiter:
    """Lets records in at a rate of records and one of bytes, whoever comes first before the others.

    At first there is no limit. What is let in follows the law of `headrace.control.TokenBucket`,
    with bursts of at most one second's worth. Belongs to one event loop, whose clock it goes by.

    Args:
        portion_bytes: The most that is let in at once (bytes in memory), unless one record alone
            has more.
    """

    def __init__(self, portion_bytes: int) -> None:
        self._portion_bytes = portion_bytes
        self._records: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._waiting_records = 0
        self._waiting_bytes = 0

    @property
    def waiting_records(self) -> int:
        """How many records wait to be let in."""
        return self._waiting_records

    @property
    def at_once(self) -> int:
        """The most records, 1 or more, that the present rate of records lets in at once."""
        if self._records is None:
            return sys.maxsize
        return max(1, int(self._records.rate_per_s * _PORTION_S))

    def set_rate(self, records_per_s: float | None, bytes_per_s: float | None) -> None:
        """Change the rates, at once for those who wait too; None is no limit.

        Raises:
            OptionError: A rate is not a finite number above 0; the ones in force stay in force.
        """
        for_records, for_bytes = (
            None if rate_per_s is None else TokenBucket(rate_per_s)
            for rate_per_s in (records_per_s, bytes_per_s)
        )
        now_s = asyncio.get_running_loop().time()
        self._records = _changed(self._records, for_records, now_s)
        self._bytes = _changed(self._bytes, for_bytes, now_s)
        self._changed.set()
        self._changed = asyncio.Event()

    def delay_s(self, portion: Portion) -> float:
        """How long the first of these would wait if they came now, as far as can be said (s)."""
        part = self._next(portion)
        now_s = asyncio.get_running_loop().time()
        delay_s = 0.0
        if self._records:
            ahead_s = self._waiting_records / self._records.rate_per_s
            delay_s = ahead_s + self._records.delay_s(part.count, now_s)
        if self._bytes:
            ahead_s = self._waiting_bytes / self._bytes.rate_per_s
            delay_s = max(delay_s, ahead_s + self._bytes.delay_s(part.bytes, now_s))
        return delay_s

    @asynccontextmanager
    async def line(self, portion: Portion) -> AsyncIterator["Line"]:
        """Stand in line with these records, until the turn comes and for as long as it lasts."""
        line = Line(self, portion)
        self._count(portion.count, portion.bytes)
        try:
            async with self._turn:
                yield line
        finally:
            self._count(-line.rest.count, -line.rest.bytes)

    async def next_portion(self, rest: Portion) -> Portion:
        """Wait until some of these may go in, the first ones, and take the tokens for them."""
        while True:
            part, changed = self._next(rest), self._changed
            if (delay_s := self._try_take(part)) == 0:
                self._count(-part.count, -part.bytes)
                return part
            try:
                async with asyncio.timeout(delay_s):
                    await changed.wait()
            except TimeoutError:
                continue

    def _try_take(self, part: Portion) -> float:
        now_s = asyncio.get_running_loop().time()
        wanted = [(self._records, part.count), (self._bytes, part.bytes)]
        takings = [(bucket, tokens) for bucket, tokens in wanted if bucket]
        delay_s = max((bucket.delay_s(tokens, now_s) for bucket, tokens in takings), default=0.0)
        if delay_s == 0:
            for bucket, tokens in takings:
                bucket.try_take(tokens, now_s)
        return delay_s

    def _next(self, rest: Portion) -> Portion:
        part = rest.first(self.at_once)
        while part.count > 1 and self._is_large(part):
            part = part.first(part.count // 2)
        return part

    def _is_large(self, part: Portion) -> bool:
        if self._bytes and part.bytes > self._bytes.rate_per_s * _PORTION_S:
            return True
        return part.memory_bytes > self._portion_bytes

    def _count(self, records: int, size_bytes: int) -> None:
        self._waiting_records += records
        self._waiting_bytes += size_bytes


class Line:
    """Records whose turn has come.

    Attributes:
        rest: Those of them that still wait.
    """

    def __init__(self, limiter: Limiter, portion: Portion) -> None:
        self._limiter = limiter
        self.rest = portion

    async def portions(self) -> AsyncIterator[Portion]:
        """The records in their order, as many at a time as may go in."""
        while self.rest.count:
            part = await self._limiter.next_portion(self.rest)
            self.rest = self.rest.after(part)
            yield part


def _changed(old: TokenBucket | None, new: TokenBucket | None, now_s: float) -> TokenBucket | None:
    """The bucket in force with the rate of the new one, so that what was taken stays taken."""
    if old is None or new is None:
        return new
    old.set_rate(new.rate_per_s, now_s)
    return old
