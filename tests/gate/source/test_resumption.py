"""Random histories of lost and restored checkpoints and ledgers: each record once, or named."""

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url
from tests.services.examples import examples

from headrace.core.ranges import TopicPartition
from headrace.core.timing import LEASE_MS
from headrace.errors import GateInUseError, HandlerExitError, OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.policy import Last, OnFailure, retry
from headrace.gate.ledger.proof import DEFECTS, Verdict
from headrace.gate.ledger.transitions import Status
from headrace.gate.source.comparison import compare_with_checkpoint
from headrace.gate.source.read_bounds import Edge, starting_bound
from headrace.gate.source.resumption import UNKNOWN_OUTCOME
from headrace.testing import Crash, MemoryLog, StreamHarness

GATE = "tested"
POLICIES: tuple[Last | OnFailure, ...] = ("defer", "stop", retry(1, then="stop"))
POINTS = ("before begin", "after begin", "after attach", "after handle", "after succeed")


class RefusedError(Exception):
    """The handler's."""


class Sink:
    """Takes each batch once, by its key; refuses what it is told to."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = {}
        self.refuses = False
        self.within: Callable[[], object] = lambda: None
        """Called once while a batch is in its handler."""

    def __call__(self, df: Any, batch: Batch) -> None:
        if batch.ranges:
            within, self.within = self.within, lambda: None
            within()
        if self.refuses and batch.ranges:
            raise RefusedError("the sink refuses this batch")
        self.by_key[batch.key] = [int(row.value) for row in df.collect()]

    @property
    def values(self) -> list[int]:
        return sorted(value for values in self.by_key.values() for value in values)


class GrowingLog(MemoryLog):
    """A topic that is given more partitions."""

    def add_partition(self) -> None:
        where = TopicPartition("records", len(self._partitions))
        self._partitions.append(where)
        self._records[where] = {}
        self._begins[where] = self._ends[where] = 0


class World:
    """A topic, a query with a checkpoint and a ledger, and what a history does to them."""

    def __init__(self, stream: StreamHarness, log: GrowingLog, sink: Sink, folder: Path) -> None:
        self.stream, self.log, self.sink, self.folder = stream, log, sink, folder
        self.starting = "earliest"
        self.sent = 0
        self.partitions = 2
        self.is_running = False
        self.is_restored = False
        """Whether the ledger was ever an older copy."""
        self._numbers = itertools.count()
        self.copies: list[tuple[Any, Path, dict[int, Any]]] = []
        self.logged: dict[int, Any] = {}
        """What Spark's checkpoint has logged of each batch."""
        self.followers: list[Path] = []
        """Copies of the ledger since the query began."""

    def send(self, number: int, crash: str | None = None) -> None:
        for _ in range(number):
            self.log.append(str(self.sent), partition=self.sent % self.partitions)
            self.sent += 1
        if crash is not None and number:
            self.log.append(Crash(crash), partition=(self.sent - 1) % self.partitions)

    def grow(self) -> None:
        """The topic has another partition, and records in it before the query looks again."""
        self.log.add_partition()
        self.partitions += 1
        self.send(self.partitions)

    def run(self) -> None:
        """Run; adopt what is refused: another ledger's, an older copy, or both."""
        for _ in range(4):
            self.is_running = True
            try:
                while self.stream.run_batch():
                    self._log()
                self._log()
            except RefusedError:
                assert self.sink.refuses, "and its handler has never worked with this ledger"
                self._stop()
                return
            except GateInUseError:
                assert self.is_restored, "the ledger is from before a crash, and has another query"
            except OptionError as refused:
                gate, what = str(refused).split("headrace adopt ")[1].split(" --")[0].split()
                self.stream.ledger.operator_limits.adopt(gate, what, "ops", "it was restored")
            else:
                return
        raise AssertionError("it is refused whatever is adopted")

    def _log(self) -> None:
        if self.stream.checkpoint is not None:
            committed, planned, number = self.stream.checkpoint
            ends = {number - 1: committed, number: planned}
            self.logged |= {at: end for at, end in ends.items() if end is not None}

    def write_checkpoint(self) -> Path:
        """Write the checkpoint's two logs as Spark does; all of it is committed."""
        folder = self.folder / "checkpoint"
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        for number, end in self.logged.items():
            text = "\n".join(["v1", "{}", json.dumps(end)])
            (folder / "offsets" / str(number)).write_text(text)
            (folder / "commits" / str(number)).write_text("v1\n{}")
        return folder

    def back_up(self) -> None:
        self._stop()
        self.copies.append((self.stream.checkpoint, self._copy(), dict(self.logged)))

    def follow(self) -> None:
        """A standby has all up to now, or a copy is made, while the query runs."""
        if self.is_running:
            self.followers.append(self._copy())

    def _stop(self) -> None:
        self.stream.stop()
        self.is_running = False
        self.followers.clear()

    def _copy(self) -> Path:
        copy = self.folder / f"{next(self._numbers)}.db"
        with closing(self._connection()) as live, closing(sqlite3.connect(copy)) as file:
            live.backup(file)
        return copy

    def lose_checkpoint(self) -> None:
        self._stop()
        self.stream.checkpoint = None
        self.logged = {}

    def restart(self) -> None:
        """The sink is emptied, and all is to be read again; copies from before are of no use."""
        if self.starting != "earliest":
            return
        self._stop()
        self.stream.ledger.operator_limits.restart(GATE, "ops", "the table is built anew")
        self.backfill()
        self.lose_checkpoint()
        self.sink.by_key.clear()
        self.copies.clear()
        self.run()

    def restore_checkpoint(self, which: int) -> None:
        """An older copy is refused, and goes on once it is adopted."""
        if not self.copies:
            return
        checkpoint, _, logged = self.copies[which % len(self.copies)]
        if checkpoint is None:
            return
        self._stop()
        self.stream.checkpoint, self.logged = checkpoint, dict(logged)
        self.run()

    def restore_ledger(self, which: int) -> None:
        if not self.copies or self.stream.checkpoint is None:
            return
        self._stop()
        self._put_back(self.copies[which % len(self.copies)][1])
        self.send(1)
        self.run()

    def promote(self, which: int, number: int) -> None:
        """An older ledger is there while the query runs, which goes on for some batches."""
        if not self.followers:
            return
        self._put_back(self.followers[which % len(self.followers)])
        self.send(number)
        self.run()

    def _put_back(self, copy: Path) -> None:
        self.is_restored = True
        with closing(sqlite3.connect(copy)) as file, closing(self._connection()) as live:
            file.backup(live)

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(str(make_url(self.stream.ledger.url).database))

    def backfill(self) -> None:
        if self.stream.policy.skips and not self.sink.refuses:
            self.stream.backfill()

    def listed(self) -> set[int]:
        """Values that `headrace failures` lists."""
        ledger = self.stream.ledger
        return {
            int(row.value)
            for batch in ledger.batches.unresolved(GATE, 1_000)
            for planned in batch.open_ranges(ledger.batches.ranges(batch.batch_key))
            for row in self.log.read([planned.offsets])
        }

    def unknown(self) -> set[int]:
        """Values in the dead batches of what a restored ledger does not know."""
        ledger = self.stream.ledger
        return {
            int(row.value)
            for batch in ledger.batches.newest(GATE, 1_000)
            if batch.error is not None and batch.error.error_class == UNKNOWN_OUTCOME
            for planned in ledger.batches.ranges(batch.batch_key)
            for row in self.log.read([planned.offsets])
        }


events = st.one_of(
    st.tuples(st.just("back_up")),
    st.tuples(st.just("follow")),
    st.tuples(st.just("backfill")),
    st.tuples(st.just("grow")),
    st.tuples(st.just("lose_checkpoint")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("restore_checkpoint"), st.integers(0, 5)),
    st.tuples(st.just("restore_ledger"), st.integers(0, 5)),
    st.tuples(st.just("promote"), st.integers(0, 5), st.integers(1, 12)),
)
rounds = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from([None, None, None, *POINTS]),
        st.booleans(),
        events,
    ),
    min_size=1,
    max_size=8,
)
"""Each sends records, perhaps with a crash, to a sink that may refuse them; an event ends it."""


@pytest.mark.integration
@examples(100)
@given(rounds, st.sampled_from(POLICIES), st.sampled_from(["earliest", "latest"]))
@example(
    [
        (7, None, True, ("back_up",)),
        (0, None, False, ("back_up",)),
        (8, None, True, ("restore_checkpoint", 0)),
    ],
    "stop",
    "earliest",
)
def test_each_record_is_in_the_sink_once_or_named(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[int, str | None, bool, tuple[Any, ...]]],
    on_failure: Last | OnFailure,
    starting: str,
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    options = {
        "maxOffsetsPerTrigger": 5,
        "backpressure.enabled": "false",
        "startingOffsets": starting,
    }
    folder = tmp_path_factory.mktemp("copies")
    with StreamHarness(sink, log, on_failure=on_failure, options=options) as stream:
        world = World(stream, log, sink, folder)
        world.starting = starting
        world.run()  # the gate's history begins while the log is empty
        for number, crash, sink.refuses, (event, *arguments) in history:
            world.send(number, crash)
            world.run()
            getattr(world, event)(*arguments)
        sink.refuses = False
        world.run()
        world.backfill()
        values, listed = sink.values, world.listed()
        assert len(values) == len(set(values)), "a record is in the sink twice"
        assert set(values) | listed == set(range(world.sent)), "a record is neither there nor named"
        if not world.is_restored:
            assert not listed, "a batch is left that nobody runs"
        if stream.policy.skips:
            assert listed == world.unknown(), "a batch is left that a backfill could run"
        found = stream.ledger.proofs.verify(GATE)
        assert not DEFECTS & {it.kind for it in found.findings}
        if world.logged:
            known, path = stream.ledger.history.checkpoints(GATE), str(world.write_checkpoint())
            compared = compare_with_checkpoint(stream.ledger, GATE, path, known)
            assert (compared.findings, compared.contradictions) == ((), ())


@pytest.mark.parametrize("on_failure", POLICIES)
@pytest.mark.parametrize("crash", [None, *POINTS[1:]])
def test_an_older_checkpoint_runs_the_newest_batch_first_if_it_is_not_done(
    tmp_path: Path, crash: str | None, on_failure: Last | OnFailure
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"maxOffsetsPerTrigger": 5, "backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure=on_failure, options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(5)
        world.run()
        world.back_up()
        world.send(5)
        world.run()
        world.send(5, crash)
        sink.refuses = crash is None
        with suppress(RefusedError):
            stream.run_batch()
        sink.refuses = False
        world.send(5)
        world.restore_checkpoint(0)
        in_order = [sorted(values) for values in sink.by_key.values()]
        assert in_order == [[*range(start, start + 5)] for start in (0, 5, 10, 15)]


@pytest.mark.parametrize("memory", ["older", "lost"])
@pytest.mark.parametrize("fails", [RefusedError, SystemExit])
def test_an_older_checkpoint_whose_own_batch_fails_again_doubles_no_later_batch(
    tmp_path: Path, fails: type[BaseException], memory: str
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"maxOffsetsPerTrigger": 5, "backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure="defer", options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(5)
        world.run()
        world.send(5, "after begin")
        stream.run_batch()
        world.back_up()  # Spark has planned a batch, and not committed it
        sink.refuses = True
        stream.run_batch()
        sink.refuses = False
        world.send(10)
        world.run()

        def fail() -> None:
            raise fails

        # Spark runs that batch again before the planner compares the copy with the ledger.
        stream.checkpoint = world.copies[0][0]
        sink.within = fail
        with suppress(HandlerExitError):
            stream.run_batch()
        if memory == "lost":
            world.lose_checkpoint()
        world.send(5)
        world.run()
        world.backfill()
        assert sink.values == [*range(world.sent)]
        assert not DEFECTS & {it.kind for it in stream.ledger.proofs.verify(GATE).findings}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("memory", ["lost", "older"])
def test_a_partition_that_is_newer_than_what_is_known_is_read_from_its_beginning(
    tmp_path: Path, memory: str, starting: str
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"backpressure.enabled": "false", "startingOffsets": starting}
    with StreamHarness(sink, log, options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.run()
        world.send(4)
        world.run()
        world.back_up()
        world.grow()
        if memory == "lost":
            world.lose_checkpoint()
        else:
            world.run()
            world.restore_checkpoint(0)
        world.run()
        assert sink.values == [*range(world.sent)]


def test_a_checkpoint_of_the_native_source_is_known_in_each_partition_from_the_first_batch_on(
    tmp_path: Path,
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    with StreamHarness(sink, log, options={"backpressure.enabled": "false"}) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(4)
        stream.checkpoint = {"records": {"0": 2, "1": 2}}, None, 1
        world.send(1)
        world.run()
        world.lose_checkpoint()
        world.run()
        assert sink.values == [4]


@pytest.mark.parametrize("crash", [None, *POINTS[1:-1], "before handle", "after claim"])
def test_a_restart_settles_what_it_reads_again(tmp_path: Path, crash: str | None) -> None:
    """An open batch in each state: deferred, of a process that is gone, and of a backfill."""
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"maxOffsetsPerTrigger": 6, "backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure="defer", options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(6)
        world.run()
        sink.refuses = crash in {None, "after claim"}
        world.send(6, crash)
        stream.run_batch()
        if crash == "after claim":
            stream.backfill(once=True)
        sink.refuses = False
        world.send(6)
        (batch,) = [each for each in stream.ledger.batches.newest(GATE) if each.records_left]
        world.restart()
        world.backfill()
        assert sink.values == [*range(18)]
        settled = stream.ledger.batches.get(batch.batch_key)
        assert settled is not None
        assert settled.resolution == "a restart of the gate reads it again (headrace)"
        assert stream.ledger.batches.unresolved() == ()
        assert stream.ledger.proofs.verify(GATE).verdict is Verdict.PROVEN


@contextmanager
def deferred(folder: Path) -> Iterator[World]:
    """Lend a world whose one batch, of 18 records, was deferred; its sink is back."""
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure="defer", options=options) as stream:
        world = World(stream, log, sink, folder)
        sink.refuses = True
        world.send(18)
        world.run()
        sink.refuses = False
        yield world


@pytest.mark.parametrize("starting", ["latest", '{"records": {"0": 9, "1": 9}}'])
def test_a_restart_leaves_to_the_backfill_what_it_does_not_read_again(
    tmp_path: Path, starting: str
) -> None:
    with deferred(tmp_path) as world:
        stream, sink = world.stream, world.sink
        stream.source_options = replace(
            stream.source_options,
            starting=starting_bound({"startingOffsets": starting}, Edge.LATEST, streaming=True),
        )
        world.restart()
        world.send(2)
        world.run()
        world.backfill()
        assert sink.values == [*range(20)]


def test_a_restart_within_a_batch_that_waits_is_refused_and_processes_nothing_twice(
    tmp_path: Path,
) -> None:
    with deferred(tmp_path) as world:
        stream, sink = world.stream, world.sink
        everywhere = stream.source_options
        within = starting_bound(
            {"startingOffsets": '{"records": {"0": 4, "1": 0}}'}, Edge.LATEST, streaming=True
        )
        stream.source_options = replace(everywhere, starting=within)
        stream.stop()
        stream.ledger.operator_limits.restart(GATE, "ops", "the table is built anew")
        world.lose_checkpoint()
        with pytest.raises(OptionError, match="begins within batch"):
            stream.run_batch()
        assert sink.values == []
        stream.source_options = everywhere
        world.lose_checkpoint()
        world.run()
        world.backfill()
        assert sink.values == [*range(18)]


@pytest.mark.parametrize("on_failure", POLICIES)
@pytest.mark.parametrize("later", [0, 5])
def test_what_was_in_its_handler_in_an_older_ledger_is_looked_at_when_its_lease_ends(
    tmp_path: Path, on_failure: Last | OnFailure, later: int
) -> None:
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"maxOffsetsPerTrigger": 5, "backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure=on_failure, options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(5)
        sink.within = world.follow
        world.run()
        (batch,) = stream.ledger.batches.newest(GATE)
        world.send(later)
        world.run()
        copies = list(world.followers)
        stream.stop()
        world._put_back(copies[0])
        assert not stream.run_batch(), "the stream is idle"
        stream.clock.sleep(LEASE_MS / 1000 + 1)
        assert not stream.run_batch()
        world.backfill()
        after = stream.ledger.batches.get(batch.batch_key)
        assert after is not None
        assert after.status is (Status.SUCCESS if stream.policy.skips else Status.FAILED)
        assert world.listed() == world.unknown() | (set() if stream.policy.skips else {*range(5)})
        assert sink.values == [*range(5 + later)]


def test_a_restart_is_obeyed_once_and_by_a_new_checkpoint_alone() -> None:
    log, sink = MemoryLog("0", "1", "2"), Sink()
    with StreamHarness(sink, log) as stream:
        stream.run()
        stream.stop()
        stream.ledger.operator_limits.restart(GATE, "ops", "the table is built anew")
        stream.run()
        assert sink.values == [0, 1, 2], "its checkpoint is there, so it is not obeyed yet"
        stream.checkpoint = None
        log.append("3", Crash("after handle"))
        stream.run()
        assert sink.values == [0, 0, 1, 1, 2, 2, 3]
        stream.checkpoint = None
        stream.run()
        assert sink.values == [0, 0, 1, 1, 2, 2, 3], "the checkpoint that is lost now goes on"


def test_a_restart_that_was_killed_in_its_first_batch_is_not_begun_again() -> None:
    log, sink = MemoryLog("0", "1", "2"), Sink()
    with StreamHarness(sink, log) as stream:
        stream.run()
        stream.stop()
        stream.ledger.operator_limits.restart(GATE, "ops", "the table is built anew")
        stream.checkpoint = None
        log.append(Crash("before handle"))
        stream.run_batch()
        assert stream.crashes == 1
        stream.checkpoint = None
        stream.run()
        assert sink.values == [0, 0, 1, 1, 2, 2]


def test_an_older_ledger_under_a_running_query_names_what_it_lacks(tmp_path: Path) -> None:
    """As after a failover to a standby that had not followed: what was deferred is not lost."""
    log, sink = GrowingLog(partitions=2), Sink()
    options = {"maxOffsetsPerTrigger": 5, "backpressure.enabled": "false"}
    with StreamHarness(sink, log, on_failure="defer", options=options) as stream:
        world = World(stream, log, sink, tmp_path)
        world.send(10)
        world.run()
        world.follow()
        world.send(10)
        world.run()
        sink.refuses = True
        world.send(10)
        world.run()
        sink.refuses = False
        world.promote(0, 10)
        assert world.unknown() == set(range(10, 30))
        stream.stop()
        world.run()
        assert sink.values == [*range(20), *range(30, 40)]
        assert [each.status for each in stream.ledger.batches.unresolved()] == [Status.DEAD]
        assert not DEFECTS & {it.kind for it in stream.ledger.proofs.verify(GATE).findings}
