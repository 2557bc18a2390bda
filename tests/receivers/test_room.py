"""Memory on loan: never more than there is, and first come, first served."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.receivers.virtual import run

from headrace.receivers.room import Room


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.booleans(), st.integers(0, 5)), min_size=1, max_size=20
    )
)
def test_nobody_is_lent_more_than_there_is_and_all_are_served_in_order(
    borrowers: list[tuple[int, bool, int]],
) -> None:
    async def work() -> None:
        room = Room(100)
        served: list[int] = []

        async def borrow(place: int, size: int, keep_s: int) -> None:
            await room.take(size)
            served.append(place)
            assert room.held_bytes <= 100
            try:
                await asyncio.sleep(keep_s)
            finally:
                room.give_back(size)

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
        assert room.held_bytes == 0
        assert room.has(100)

    run(work())


def test_who_comes_later_does_not_pass_by_who_waits() -> None:
    async def work() -> None:
        room = Room(100)
        assert room.try_take(60)
        waiting = asyncio.create_task(room.take(50))
        await asyncio.sleep(0)

        assert not room.has(1)
        assert not room.try_take(1)

        room.give_back(60)
        await waiting
        assert room.held_bytes == 50

    run(work())


def test_who_leaves_while_waiting_holds_up_nobody_behind() -> None:
    async def work() -> None:
        room = Room(100)
        assert room.try_take(50)
        first = asyncio.create_task(room.take(90))
        second = asyncio.create_task(room.take(10))
        await asyncio.sleep(0)

        first.cancel()
        await second
        assert room.held_bytes == 60

    run(work())


def test_who_leaves_just_when_it_is_served_gives_back_what_it_never_had() -> None:
    async def work() -> None:
        room = Room(100)
        assert room.try_take(100)
        leaves = asyncio.create_task(room.take(80))
        stays = asyncio.create_task(room.take(70))
        await asyncio.sleep(0)

        room.give_back(100)
        leaves.cancel()
        await stays
        assert room.held_bytes == 70

    run(work())
