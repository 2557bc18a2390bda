"""Limiter of the record rate and the byte rate at which an intake admits records."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Final

from headrace.gate import TokenBucket
from headrace.journal.receivers.memory_budget import memory_bytes
from headrace.journal.records import Records

_CHUNK_S: Final = 0.1
"""A chunk has as many records as the rate limit admits in this time (s). If the time is too long, a
new rate takes effect late; if too short, the work for each chunk costs throughput."""


class Limiter:
    """Rate limiter of records and bytes, which admits records in the order of their arrival.

    There is no limit until `set_rate` is called. Two token buckets
    (`headrace.gate.control.TokenBucket`) limit the rates. After a pause, at most one second's
    records and bytes are admitted at once. A chunk of admitted records takes at most
    ``chunk_bytes`` of memory, unless it is a single larger record. Use a limiter in one event loop
    only.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._records: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self.waiting_records = 0
        self._waiting_bytes = 0

    @property
    def records_at_once(self) -> int:
        """Number of records, 1 or more, that the current rate limit admits in one chunk."""
        if self._records is None:
            return sys.maxsize
        return max(1, int(self._records.rate_per_s * _CHUNK_S))

    def set_rate(self, records_per_s: float | None, bytes_per_s: float | None) -> None:
        """Set the rate limits, also for records that already wait. None means no limit.

        Raises:
            OptionError: A rate is not a finite number above 0. The old rates stay in force.
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

    def delay_s(self, records: Records) -> float:
        """Estimate how long the first chunk of these records would wait if submitted now (s)."""
        chunk = self.next_chunk(records)
        now_s = asyncio.get_running_loop().time()
        delay_s = 0.0
        if self._records:
            ahead_s = self.waiting_records / self._records.rate_per_s
            delay_s = ahead_s + self._records.delay_s(chunk.count, now_s)
        if self._bytes:
            ahead_s = self._waiting_bytes / self._bytes.rate_per_s
            delay_s = max(delay_s, ahead_s + self._bytes.delay_s(chunk.bytes, now_s))
        return delay_s

    async def admit(self, records: Records) -> AsyncGenerator[Records, None]:
        """Yield these records in chunks, in order, each chunk as soon as the rate limits admit it.

        Records of an earlier call are admitted first.
        """
        rest, rest_bytes = records, records.bytes
        self._add_waiting(rest.count, rest_bytes)
        try:
            async with self._turn:
                while rest.count:
                    chunk = await self._take_tokens(rest)
                    self._add_waiting(-chunk.count, -chunk.bytes)
                    rest, rest_bytes = rest.slice(chunk.count, rest.count), rest_bytes - chunk.bytes
                    yield chunk
        finally:
            self._add_waiting(-rest.count, -rest_bytes)

    async def _take_tokens(self, rest: Records) -> Records:
        while True:
            chunk, changed = self.next_chunk(rest), self._changed
            if (delay_s := self._try_take(chunk)) == 0:
                return chunk
            try:
                async with asyncio.timeout(delay_s):
                    await changed.wait()
            except TimeoutError:
                continue

    def _try_take(self, chunk: Records) -> float:
        now_s = asyncio.get_running_loop().time()
        wanted = [(self._records, chunk.count), (self._bytes, chunk.bytes)]
        takings = [(bucket, tokens) for bucket, tokens in wanted if bucket]
        delay_s = max((bucket.delay_s(tokens, now_s) for bucket, tokens in takings), default=0.0)
        if delay_s == 0:
            for bucket, tokens in takings:
                bucket.try_take(tokens, now_s)
        return delay_s

    def next_chunk(self, rest: Records) -> Records:
        """Return the first chunk of these records, 1 or more: as many as the limits admit at once.

        The limits are the record rate, the byte rate and ``chunk_bytes``.
        """
        chunk = rest if rest.count <= self.records_at_once else rest.slice(0, self.records_at_once)
        while chunk.count > 1 and self._is_large(chunk):
            chunk = chunk.slice(0, chunk.count // 2)
        return chunk

    def _is_large(self, chunk: Records) -> bool:
        if self._bytes and chunk.bytes > self._bytes.rate_per_s * _CHUNK_S:
            return True
        return memory_bytes(chunk) > self._chunk_bytes

    def _add_waiting(self, records: int, size_bytes: int) -> None:
        self.waiting_records += records
        self._waiting_bytes += size_bytes


def _changed(old: TokenBucket | None, new: TokenBucket | None, now_s: float) -> TokenBucket | None:
    """Set the new rate in the old bucket and return this bucket. Used tokens stay used.

    If one of the buckets is None (no limit), return the new bucket instead.
    """
    if old is None or new is None:
        return new
    old.set_rate(new.rate_per_s, now_s)
    return old
