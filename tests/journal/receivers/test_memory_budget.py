"""Memory on loan: never more than there is, and first come, first served."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.journal.receivers.virtual import in_virtual_time, run

from headrace.journal.receivers.memory_budget import MemoryBudget


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.booleans(), st.integers(0, 5)), min_size=1, max_size=20
    )
)
def test_no_more_than_the_budget_is_granted_and_in_order(
    borrowers: list[tuple[int, bool, int]],
) -> None:
    async def work() -> None:
        budget = MemoryBudget(100)
        served: list[int] = []

        async def borrow(place: int, size: int, keep_s: int) -> None:
            await budget.acquire(size)
            served.append(place)
            assert budget.reserved_bytes <= 100
            try:
                await asyncio.sleep(keep_s)
            finally:
                budget.release(size)

        tasks = [
            asyncio.create_task(borrow(place, size, keep_s))
            for place, (size, _, keep_s) in enumerate(borrowers)
        ]
        await asyncio.sleep(0)
        for task, (_, leaves, _) in zip(tasks, borrowers, strict=True):
            if leaves:
                task.cancel()
        await asyncio.wait(tasks)
        assert served == sorted(served)
        assert {place for place, (_, leaves, _) in enumerate(borrowers) if not leaves} <= set(
            served
        )
        assert budget.reserved_bytes == 0
        assert budget.is_available(100)

    run(work())


@in_virtual_time
async def test_a_later_request_does_not_overtake_a_waiting_one() -> None:
    budget = MemoryBudget(100)
    assert budget.try_acquire(60)
    waiting = asyncio.create_task(budget.acquire(50))
    await asyncio.sleep(0)

    assert not budget.is_available(1)
    assert not budget.try_acquire(1)

    budget.release(60)
    await waiting
    assert budget.reserved_bytes == 50


@in_virtual_time
async def test_a_cancelled_wait_does_not_block_the_next() -> None:
    budget = MemoryBudget(100)
    assert budget.try_acquire(50)
    first = asyncio.create_task(budget.acquire(90))
    second = asyncio.create_task(budget.acquire(10))
    await asyncio.sleep(0)

    first.cancel()
    await second
    assert budget.reserved_bytes == 60


@in_virtual_time
async def test_a_wait_that_is_cancelled_when_granted_releases_the_memory() -> None:
    budget = MemoryBudget(100)
    assert budget.try_acquire(100)
    leaves = asyncio.create_task(budget.acquire(80))
    stays = asyncio.create_task(budget.acquire(70))
    await asyncio.sleep(0)

    budget.release(100)
    leaves.cancel()
    await stays
    assert budget.reserved_bytes == 70
