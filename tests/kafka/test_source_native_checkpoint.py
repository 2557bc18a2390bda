"""A query of Spark's own connector that changes its format and nothing else."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.services.kafka import TopicFactory
from tests.services.queries import available_now, stream_of


def test_a_checkpoint_of_the_native_source_is_gone_on_from_without_a_record_lost_or_doubled(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    orders.produce(*[b"a%d" % n for n in range(6)])
    options = {"maxOffsetsPerTrigger": 4}
    native = stream_of(spark, orders, options, source="kafka")
    ours = stream_of(spark, orders, options)

    def crash_in_second(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("crashed, with the batch planned and not yet committed")

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="crashed, with the batch planned"):
        available_now(native, checkpoint, crash_in_second)
    orders.produce(b"b", partition=1)
    collected = available_now(ours, checkpoint)
    assert collected.sizes == [2, 1], "first the batch that was planned, then what is new"
    assert collected.values == ["a4", "a5", "b"]
