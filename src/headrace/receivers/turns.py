"""The event loop's time, divided among connections that have much to be done."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.0002
"""Work for one connection that is done at a time (s). Larger, and other senders wait longer;
smaller, and changing between connections costs throughput."""

FIRST_PART_BYTES: Final = 256
"""Data of which it is not known how long it takes is begun with so much."""

_LEAST_PART_BYTES: Final = 32


class Turns:
    """Gives a turn to one connection in each round of the event loop, first come, first served.

    Whoever has worked for ``slice_s`` waits for a turn before it goes on. So work that is left over
    takes one slice of each round, however many connections have some, and what is short passes it.
    """

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, go_on: Callable[[], None]) -> None:
        """Call this when it is its turn."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def next_part_bytes(self, part_bytes: int, took_s: float, max_bytes: int) -> int:
        """Return the size of the next part of data: each should take 1/8 to 1/2 of a slice."""
        if took_s > self.slice_s / 2:
            return max(_LEAST_PART_BYTES, part_bytes // 2)
        return min(max_bytes, part_bytes * 2) if took_s < self.slice_s / 8 else part_bytes

    async def wait(self) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _run(self) -> None:
        go_on = self._waiting[0]
        try:
            go_on()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)


class Work:
    """The time that was spent on one connection, ``spent_s``, since its last turn (s)."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._now_s = asyncio.get_running_loop().time
        self.spent_s = 0.0
        self._began_s = 0.0

    def begin(self) -> None:
        """Begin to count time."""
        self._began_s = self._now_s()

    def is_over(self) -> bool:
        """Count the time since `begin` or the last call; whether it is more than a slice."""
        now_s = self._now_s()
        self.spent_s += now_s - self._began_s
        self._began_s = now_s
        return self.spent_s >= self._turns.slice_s

    async def give_way(self) -> None:
        """Wait for a turn if a slice is over."""
        if self.is_over():
            await self._turns.wait()
            self.renew()

    def renew(self) -> None:
        """Begin a slice."""
        self.spent_s = 0.0
        self.begin()
