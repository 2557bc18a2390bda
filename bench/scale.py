"""Amounts that the benchmarks measure."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of every benchmark.

    Attributes:
        pairs: Rounds that count, of every comparison.
        warm_ups: Rounds before them.
        value_bytes: The sizes of records that are read as a whole.
        topic_bytes: The values in such a topic.
        small_batch_partitions: The topics of the queries of small batches.
        small_batches: Batches of a query of small batches, those at its start included.
        small_batch_rows: Rows in each of them.
        skipped_batches: Batches at a query's start that do not count.
        early_end_batches: Batches of a query whose handler does not read to the end; the first does
            not count.
        repetitions: Repetitions of a short measurement that is taken alone.
        ledger_batches: In the histories of the ledgers that are compared, the short one first.
        planner_partitions: Partitions of the topic that is planned.
        steady_batches: Batches before a handler becomes slow, and after it is fast again.
        slow_batches: Batches between.
        control_batches: Batches of each phase of a job that a rate law drives.
        backfill_batches: Batches of a run beside which what failed is backfilled.
        long_run_batches: Batches of the run whose memory is watched.
        backlog_rows: Rows that are read in one batch while the memory is watched.
        block_records: Records of a block that is written to a journal.
        blocks: Number of such blocks.
        journal_blocks: Blocks of the journal that is recovered.
        receiver_records: Records that a receiver is sent at once.
        single_requests: Requests of one record, or of a few, each of which waits for its answer.
        receiver_seconds: Time that a receiver is sent records at a pace (s).
        limited_seconds: Time that a receiver is sent more than it may admit (s).
        half_open: Senders beside the good ones who never send anything whole.
        signals: Measurements of the delay of a signal.
        flow_stages: Stages of the chain whose signals are a load for ZooKeeper.
        flow_applications: Applications that these stages are in, if they share sessions.
        load_seconds: Time that each kind of that load is measured (s).
        executors: Numbers of executors of the clusters that are compared.
        executor_batches: Batches of the query on each of them, those at its start included.
        executor_rows: Rows in each of these batches.
        gates: Number of gates that share a ledger, and the interval of each (s).
        gates_seconds: Time that they share it (s).
    """

    pairs: int = 5
    warm_ups: int = 2
    value_bytes: tuple[int, ...] = (100, 200, 2_000)
    topic_bytes: int = 240_000_000
    small_batch_partitions: tuple[int, ...] = (4, 32)
    small_batches: int = 40
    small_batch_rows: int = 20_000
    skipped_batches: int = 6
    early_end_batches: int = 10
    repetitions: int = 200
    ledger_batches: tuple[int, int] = (1_000, 1_000_000)
    planner_partitions: int = 500
    steady_batches: int = 12
    slow_batches: int = 12
    control_batches: int = 10
    backfill_batches: int = 24
    long_run_batches: int = 200
    backlog_rows: int = 4_000_000
    block_records: int = 32_768
    blocks: int = 40
    journal_blocks: int = 100_000
    receiver_records: int = 1_500_000
    single_requests: int = 4_000
    receiver_seconds: float = 6
    limited_seconds: float = 20
    half_open: int = 500
    signals: int = 60
    flow_stages: int = 1_000
    flow_applications: int = 50
    load_seconds: float = 10
    executors: tuple[int, ...] = (1, 2, 4)
    executor_batches: int = 16
    executor_rows: int = 400_000
    gates: tuple[tuple[int, float], ...] = ((10, 1), (100, 1), (1_000, 10), (1_000, 1))
    gates_seconds: float = 60


QUICK: Final = Scale(
    pairs=1,
    warm_ups=0,
    value_bytes=(200,),
    topic_bytes=4_000_000,
    small_batch_partitions=(4,),
    small_batches=6,
    small_batch_rows=3_200,
    skipped_batches=2,
    early_end_batches=3,
    repetitions=10,
    ledger_batches=(100, 1_000),
    planner_partitions=50,
    steady_batches=3,
    slow_batches=4,
    control_batches=4,
    backfill_batches=12,
    long_run_batches=10,
    backlog_rows=20_000,
    blocks=4,
    journal_blocks=2_000,
    receiver_records=100_000,
    single_requests=300,
    receiver_seconds=1,
    limited_seconds=2,
    half_open=50,
    signals=5,
    flow_stages=100,
    flow_applications=5,
    load_seconds=3,
    executors=(1, 2),
    executor_batches=9,
    executor_rows=20_000,
    gates=((10, 1), (100, 1), (1_000, 10), (1_000, 1)),
    gates_seconds=10,
)
"""To see that everything works; its figures mean little."""
