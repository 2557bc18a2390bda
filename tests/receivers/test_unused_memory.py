"""Memory that large requests have left is given back."""

import asyncio

import pyarrow as pa
from tests.receivers.serving import in_loop

from headrace.receivers import unused_memory


def test_unused_memory_is_given_back_and_what_is_used_stays() -> None:
    kept = pa.array(range(100_000))
    unused_memory.give_back()
    assert kept.to_pylist() == list(range(100_000))


@in_loop
async def test_memory_is_given_back_while_it_is_more_than_an_idle_process_has() -> None:
    resident_bytes = [100, 100, 50_000_000, 100, 100, 90_000_000, 100]
    left, trims = iter(resident_bytes), list[int]()
    done = asyncio.Event()

    def resident() -> int:
        if (now_bytes := next(left, None)) is None:
            done.set()
            return 100
        return now_bytes

    giving = asyncio.create_task(
        unused_memory.keep_giving_back(resident, lambda: trims.append(1), least_s=0, most_s=0)
    )
    await done.wait()
    giving.cancel()
    assert len(trims) == 2


def test_resident_memory_is_that_of_the_process() -> None:
    assert unused_memory.resident_bytes() > 10_000_000
