"""Test harness that runs a handler behind a gate, with Headrace's own code and without Spark."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

from headrace.core.backoff import Backoff
from headrace.core.options import interval_ms
from headrace.core.ranges import OffsetRange
from headrace.core.system import new_owner
from headrace.core.timing import LEASE_MS
from headrace.decoding import decode
from headrace.errors import OptionError
from headrace.gate import (
    MAX_BACKFILLS,
    NO_RETRIES,
    BackfillEvent,
    BackfillLimits,
    BackfillScheduler,
    Batch,
    DeadLetter,
    DecodedValues,
    Edge,
    GatedHandler,
    GateListener,
    Last,
    Ledger,
    Monitor,
    OnFailure,
    OutageWord,
    OwnerSettings,
    PlannedBatch,
    PlannedRange,
    Progress,
    RunContext,
    Status,
    StreamPlanner,
    Timeouts,
    ToRead,
    UnlimitedBudget,
    call_handler,
    check_handler,
    decoded_values,
    exactly_named,
    fails_on_misfit,
    outage_settings,
    parse_on_failure,
    parse_source_options,
    progress_event,
    with_outages,
)
from headrace.testing.memory import STEPS, MemoryLog, SimulatedCrash, temporary_ledger, watch
from headrace.testing.memory_reader import TESTED_GATE, MemoryReader

Checkpoint = tuple[dict[str, Any] | None, dict[str, Any] | None, int]
"""State of a checkpoint: the end offsets of the last committed batch, the end offsets of a planned
batch that is not committed (or None), and the number of committed batches."""

TestedHandler = Callable[[Any, Batch], object]
"""Handler under test, called as ``handler(df, batch)``."""


class _InThisThread:
    def __init__(self, _name: str) -> None:
        pass

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        work()
        return True


class _Program:
    """One run of the query's program, which ends when it is closed or crashes."""

    def __init__(self, harness: "StreamHarness") -> None:
        self._harness = harness
        self._resources = ExitStack()
        self.crashed = False
        self.run = uuid4()
        self.ledger = self._open_ledger(harness.ledger.url)
        self.planner = StreamPlanner(
            harness.log, harness.source_options, harness.clock, open_ledger=self._open_ledger
        )
        self._resources.callback(self.planner.close)
        context = RunContext(
            ledger=self.ledger,
            handler=self._handle,
            policy=harness.policy,
            reader=harness.reader if harness.policy.skips else None,
            records=harness.reader,
            checks_fit=fails_on_misfit(harness.reader.options),
            sleep=harness.clock.sleep,
            dice=harness.dice,
        )
        self.handler = GatedHandler(TESTED_GATE, context)
        self.listener = GateListener(lambda _gate, _run: self.ledger, new_worker=_InThisThread)

    def close(self) -> None:
        self._resources.close()

    def _open_ledger(self, url: str, /, *, timeouts: Timeouts = NO_RETRIES) -> Ledger:
        clock = self._harness.clock
        ledger = Ledger.open(url, clock=clock, database_clock=clock, timeouts=timeouts)
        self._resources.callback(ledger.close)
        for store in (ledger.batches, ledger.dead_letters, ledger.rates):
            for step in STEPS:
                if hasattr(store, step):
                    watch(store, step, self._stored)
        lend = ledger.batches.transaction

        @contextmanager
        def transaction(
            batch_key: str,
            owner: str,
            *,
            rejected: Callable[[], Sequence[DeadLetter]] = tuple,
            progress: Progress | None = None,
        ) -> Iterator[Connection]:
            with lend(batch_key, owner, rejected=rejected, progress=progress) as connection:
                yield connection
                self._stored("before commit", (batch_key,))
            self._stored("after commit", (batch_key,))

        setattr(ledger.batches, "transaction", transaction)  # noqa: B010  (on this ledger alone)
        return ledger

    def _stored(self, point: str, arguments: tuple[Any, ...]) -> None:
        """Raise `SimulatedCrash` if the process crashes at this point of a batch.

        ``arguments`` are those of the store's method: the first is the batch or its key.
        """
        batch = arguments[0]
        planned = isinstance(batch, PlannedBatch)
        ranges = batch.ranges if planned else self._harness.ledger.batches.ranges(batch)
        self._passed(point, [planned_range.offsets for planned_range in ranges])

    def _passed(self, point: str, ranges: Sequence[OffsetRange]) -> None:
        # Once crashed, every step raises, so that no cleanup of the program becomes durable.
        if self.crashed or self._harness.log.crashes(point, ranges):
            self.crashed = True
            raise SimulatedCrash(f"The process crashes {point}.")

    def _handle(self, df: DataFrame, batch: Batch) -> None:
        harness = self._harness
        self._passed("before handle", batch.ranges)
        frame: Any = df
        frame = frame if harness.spark is None else frame.to_spark(harness.spark)
        frame = frame if harness.values is None else decode(frame, harness.values.form)
        call_handler(harness.handler, harness.transform(frame), batch)
        self._passed("after handle", batch.ranges)


_ALL: Final = 1_000_000
"""Limit that exceeds the number of batches and records in any test."""


def _by_offset(
    planned: Sequence[PlannedRange], partition: int, status: Status
) -> dict[int, Status]:
    return {
        offset: status
        for planned_range in planned
        if planned_range.offsets.partition == partition
        for offset in range(planned_range.offsets.start, planned_range.offsets.until)
    }


class StreamHarness:
    """A gated query over a `MemoryLog`, whose batches a test runs one by one.

    The planner, ledger, failure policy, backfill and rate estimator are those of a real query. The
    test takes the place of Spark's engine, and calls `run_batch`. All times are times of the log's
    clock. To simulate work that takes time, let the handler advance this clock. ::

        log = MemoryLog("1", "2", "not a number", "4")
        with StreamHarness(handler, log, on_failure="defer") as stream:
            stream.run()                   # the stream continues without the failed batch
            stream.handler = mended
            stream.backfill()              # the failed batch runs again
            assert set(stream.statuses().values()) == {"success"}

    A `Crash` in the log ends the program at the crash's point. The next call restarts the program
    after the leases have expired, and repeats the batch that Spark has not committed.

    Args:
        handler: The handler under test, called as ``handler(df, batch)``.
        log: The log to read.
        on_failure: As for `headrace.Gate.write`.
        on_outage: As for `headrace.Gate.write`. A batch waits for at most ``outage.maxHold``
            (default here: one hour) by the log's clock; then ``on_failure`` applies.
        interval: The gate's interval. Default: 1 second.
        options: Options of source and gate, such as ``{"maxOffsetsPerTrigger": 2}``. The option
            ``decode`` needs a session.
        transform: A function that transforms the DataFrame between the source and the handler.
        spark: A session, for a handler that uses Spark. Default: None; no JVM is started, and the
            handler receives an object with ``collect()``, ``count()`` and ``isEmpty()``.

    Attributes:
        handler: The handler. A test may replace it, as a new version of the program would.
        clock: The log's clock.
        ledger: The gate's ledger, for assertions.
        crashes: The number of crashes so far.

    Raises:
        OptionError: The handler has the wrong signature, or the policy is unknown or sends dead
            letters to Kafka. On entry of the ``with`` block: an option is wrong.
    """

    ledger: Ledger

    def __init__(
        self,
        handler: TestedHandler,
        log: MemoryLog,
        *,
        on_failure: Last | OnFailure = "stop",
        on_outage: OutageWord = "hold",
        interval: str = "1 second",
        options: Mapping[str, object] | None = None,
        transform: Callable[[Any], Any] = lambda df: df,
        spark: SparkSession | None = None,
    ) -> None:
        check_handler(handler)
        named = {name: str(value) for name, value in (options or {}).items()}
        self.handler = handler
        self.log = log
        self.clock = log.clock
        outages = outage_settings(
            {"outage.maxHold": "1 hour", **named} if on_outage == "hold" else named
        )
        self.policy = with_outages(parse_on_failure(on_failure), on_outage, outages)
        if self.policy.topic is not None:
            raise OptionError(
                f"on_failure sends dead letters to the topic {self.policy.topic!r}, but a test has"
                " no brokers; omit the topic, and read the dead letters in ledger.dead_letters."
            )
        self.transform = transform
        self.spark = spark
        self.crashes = 0
        self.dice = random.Random(0)  # noqa: S311  (seeded, so that a failing test fails again)
        self._interval_ms = interval_ms("interval", interval)
        self._options = named
        self.values: DecodedValues | None = None
        self._resources = ExitStack()
        self._program: _Program | None = None
        self._committed: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        self._batch_id = 0
        self._next_ms = self.clock()

    def __enter__(self) -> Self:
        named = exactly_named("StreamHarness", self._options, streaming=True)
        with ExitStack() as opened:
            self.ledger = opened.enter_context(temporary_ledger(self.clock))
            raw = named | {
                "headrace.gate": TESTED_GATE,
                "headrace.ledger": self.ledger.url,
                "headrace.interval": f"{self._interval_ms} ms",
            }
            options = parse_source_options(raw, streaming=True, stream_begins=Edge.EARLIEST)
            self._resources = opened.pop_all()
        self.source_options = options
        self.values = decoded_values(raw)
        if self.values is not None and self.spark is None:
            raise OptionError(
                "The option decode needs a Spark session; pass one to the StreamHarness: spark=..."
            )
        self.reader = MemoryReader(
            self.log, raw, options.include_headers, not options.fail_on_data_loss
        )
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()
        self._resources.close()

    def run_batch(self) -> bool:
        """Fire the next trigger: plan a batch, run it, and learn the rate from its duration.

        The clock advances to the trigger. A crash is not raised, but counted in ``crashes``.

        Returns:
            Whether there was a batch to run.

        Raises:
            Exception: The error that ends the query. It comes from the handler if ``on_failure`` is
                ``stop``, or from the log or the planner. The next call restarts the query.
        """
        return self._survive(self._trigger) is not False

    def run(self) -> None:
        """Run batches until all records in the log are read.

        Raises:
            Exception: As for `run_batch`.
        """
        while self.run_batch():
            pass

    def backfill(
        self, *, max_backfills: int = MAX_BACKFILLS, once: bool = False
    ) -> list[BackfillEvent]:
        """Run deferred batches until each is processed or dead; advance the clock to each retry.

        Args:
            max_backfills: The number of failed backfills after which a batch is dead. Default: 100.
            once: Whether to run each batch only once, without waiting for its retry time. Default:
                False.

        Returns:
            The events of the backfill, in order.

        Raises:
            OptionError: ``on_failure`` is ``stop``, so no batch is deferred.
            BrokerError: The log cannot be reached.
        """
        if not self.policy.skips:
            raise OptionError(
                "on_failure is 'stop', so no batch is deferred for a backfill; call run(), which"
                " runs a failed batch again."
            )
        events: list[BackfillEvent] = []
        run = self._backfill_once if once else self._backfill
        while self._survive(partial(run, events, max_backfills)) is None:
            pass
        return events

    def stop(self) -> None:
        """Stop the program cleanly; the next `run_batch`, `run` or `backfill` starts it again."""
        if self._program is not None:
            self._program.close()
            self._program = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Present state of the query's checkpoint; None before the first batch.

        A test may set the checkpoint while no batch runs. None simulates a lost checkpoint. An
        earlier value simulates a checkpoint that was restored from an old copy. The next call
        restarts the program.
        """
        kept = self._committed, self._planned, self._batch_id
        return None if kept[:2] == (None, None) else kept

    @checkpoint.setter
    def checkpoint(self, checkpoint: Checkpoint | None) -> None:
        self.stop()
        self._committed, self._planned, self._batch_id = checkpoint or (None, None, 0)

    def statuses(self, partition: int = 0) -> dict[int, Status]:
        """Return the status in the ledger of each planned offset of a partition.

        An offset has the status of its batch. But offsets in a processed part of a batch have the
        status ``success``, and dead letters have the status ``dead``.
        """
        statuses: dict[int, Status] = {}
        for batch in reversed(self.ledger.batches.newest(TESTED_GATE, _ALL)):
            planned = self.ledger.batches.ranges(batch.batch_key)
            statuses |= _by_offset(planned, partition, Status.SUCCESS)
            if batch.status is not Status.SUCCESS:
                statuses |= _by_offset(batch.open_ranges(planned), partition, batch.status)
        for kept in self.ledger.dead_letters.oldest(TESTED_GATE, limit=_ALL):
            if kept.letter.partition == partition:
                statuses[kept.letter.offset] = Status.DEAD
        return dict(sorted(statuses.items()))

    @property
    def rate_per_s(self) -> float | None:
        """Rate that the gate has learnt (records/s); None before the first rate."""
        return self.ledger.rates.current(TESTED_GATE)

    def _survive(self, work: Callable[[_Program], bool]) -> bool | None:
        program = self._program = self._program or _Program(self)
        try:
            return work(program)
        except BaseException:
            self.stop()
            if not program.crashed:
                raise
        self.crashes += 1
        self.clock.sleep(LEASE_MS / 1000)
        return None

    def _trigger(self, program: _Program) -> bool:
        start_ms = self.clock.now_ms = max(self.clock(), self._next_ms)
        self._next_ms = start_ms + self._interval_ms
        start = self._committed or program.planner.initial()
        if self._planned is None:
            planned = program.planner.advance(start, everything=False)
            if planned == start:
                return False
            self._planned = planned
        end = self._planned
        # Spark calls initial() whenever it needs the first offset, and gets an answer with another
        # identity each time. So call it again here.
        begun = program.planner.begin(self._committed or program.planner.initial(), end)
        program.handler(self.reader.frame(begun.ranges), self._batch_id)
        self._committed, self._planned = end, None
        self._batch_id += 1
        self._report(program, start_ms, start, end, begun)
        return True

    def _report(
        self, program: _Program, start_ms: int, start: Any, end: Any, begun: ToRead
    ) -> None:
        began = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(timespec="milliseconds")
        source = {
            "description": self.log.name,
            "startOffset": start,
            "endOffset": end,
            "latestOffset": program.planner.latest(),
            "numInputRows": sum(offsets.count for offsets in begun.ranges),
        }
        progress = {
            "id": str(UUID(int=0)),
            "runId": str(program.run),
            "name": TESTED_GATE,
            "timestamp": began.replace("+00:00", "Z"),
            "batchId": self._batch_id - 1,
            "batchDuration": self.clock() - start_ms,
            "durationMs": {"triggerExecution": self.clock() - start_ms},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "a handler", "numOutputRows": -1},
        }
        program.listener.onQueryProgress(progress_event(json.dumps(progress)))

    def _scheduler(
        self, events: list[BackfillEvent], max_backfills: int, program: _Program
    ) -> BackfillScheduler:
        owner = new_owner()
        runner = program.handler.runner(owner, limits=BackfillLimits(max_backfills))
        return BackfillScheduler(
            program.ledger,
            runner.run,
            self.reader,
            OwnerSettings(owner),
            limits=runner.limits,
            budget=UnlimitedBudget(),
            clock=self.clock,
            on_event=events.append,
        )

    def _backfill_once(
        self, events: list[BackfillEvent], max_backfills: int, program: _Program
    ) -> bool:
        failed = program.ledger.batches.failed(TESTED_GATE, _ALL)
        scheduler = self._scheduler(events, max_backfills, program)
        scheduler.run_manually([batch.batch_key for batch in failed if not batch.interrupted])
        return True

    def _backfill(self, events: list[BackfillEvent], max_backfills: int, program: _Program) -> bool:
        backoff = Backoff()
        scheduler = self._scheduler(events, max_backfills, program)
        monitor = Monitor(
            program.ledger, TESTED_GATE, backoff=backoff, seconds=self.clock.monotonic
        )
        monitor.refresh()
        while waiting := monitor.batches():
            if scheduler.run_next(monitor) is None:
                due_ms = min(batch.ended_ms + backoff.wait_ms(batch.backfills) for batch in waiting)
                self.clock.now_ms = max(self.clock() + 1_000, due_ms)
            monitor.refresh()
        return True
