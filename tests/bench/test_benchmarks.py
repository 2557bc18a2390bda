"""Every benchmark runs on a real broker and a real Spark; what it finds here means nothing."""

import math
from dataclasses import replace

import pytest
from bench.__main__ import BENCHMARKS, Name
from bench.scale import QUICK
from bench.stage import Stage
from bench.topics import Topics
from pyspark.sql import SparkSession

import headrace
from headrace.operate.local import KafkaBroker

TINY = replace(
    QUICK,
    value_bytes=(200,),
    topic_bytes=200_000,
    small_batch_partitions=(4,),
    small_batches=3,
    small_batch_rows=640,
    skipped_batches=1,
    early_end_batches=2,
    repetitions=3,
    ledger_batches=(50, 100),
    planner_partitions=8,
    steady_batches=3,
    slow_batches=2,
    control_batches=3,
    backfill_batches=10,
    long_run_batches=6,
    backlog_rows=4_000,
    block_records=100,
    blocks=2,
    journal_blocks=20,
    receiver_records=2_000,
    single_requests=60,
    receiver_seconds=0.5,
    limited_seconds=2,
    half_open=3,
    signals=2,
    flow_stages=20,
    flow_applications=2,
    load_seconds=1,
    executors=(1,),
    executor_batches=4,
    executor_rows=800,
    gates=((4, 0.5),),
    gates_seconds=1,
)


@pytest.fixture(scope="module")
def stage(
    spark: SparkSession, broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    headrace.register(spark)
    return Stage(
        spark=spark,
        native=spark.newSession(),
        topics=Topics(broker.bootstrap_servers),
        folder=tmp_path_factory.mktemp("bench"),
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in Name if name not in {Name.RECOVERY, Name.FLOW}])
def test_a_benchmark_finds_its_figures_and_ends_its_queries(name: Name, stage: Stage) -> None:
    figures = list(BENCHMARKS[name](stage, TINY))
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert math.isfinite(figure.headrace.median)
        assert figure.headrace.least > 0 or name in {Name.CONTROL, Name.SIGNALS}, (
            "but what nobody asks needs no CPU, and who begins near the best settles at once"
        )
        assert (figure.native is None) == (figure.ratio is None) or name is Name.CONTROL
    assert not stage.spark.streams.active
    assert not stage.native.streams.active
