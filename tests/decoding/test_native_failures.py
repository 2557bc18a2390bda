"""A task in which the native engine fails: it fails like any other, and its records are decoded.

Left out where `make native` has not built the engine; CI requires it.
"""

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from tests.gate.execution.queries import finish, read
from tests.services.kafka import TopicFactory

import headrace
from headrace.decoding import native_json
from headrace.decoding.json_format import JsonDecoder, JsonFormat
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger

SCHEMA = t.StructType([t.StructField("id", t.LongType(), nullable=False)])


class PanicException(BaseException):
    """As pyo3 raises a panic that the engine has not caught."""


@dataclass(frozen=True)
class FailingFormat(JsonFormat):
    """JSON whose native decoder fails once, in a worker of Spark."""

    failure: str
    marker: Path

    def decoder(self, columns: t.StructType, asked: Collection[str] | None = None) -> JsonDecoder:
        module = vars(native_json)
        usable = module["native_engine"]

        def failing_once() -> Any:
            module["native_engine"] = usable
            engine: Any = usable()
            return SimpleNamespace(
                JsonColumns=lambda fields: _FailingColumns(engine.JsonColumns(fields), self)
            )

        module["native_engine"] = failing_once
        return super().decoder(columns, asked)


class _FailingColumns:
    def __init__(self, native: Any, of: FailingFormat) -> None:
        self._native = native
        self._of = of

    def decode(self, values: pa.Array) -> Any:
        decoded = self._native.decode(values)
        try:
            self._of.marker.open("x").close()
        except FileExistsError:
            return decoded
        if self._of.failure == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("no more") if self._of.failure == "error" else PanicException("panic")


@pytest.mark.parametrize("failure", ["kill", "error", "panic"])
def test_a_task_whose_engine_fails_loses_and_doubles_nothing(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path, failure: str
) -> None:
    orders = topic(2)
    orders.produce(*(b'{"id":%d}' % number for number in range(200)))
    form = FailingFormat(SCHEMA.json(), failure, tmp_path / "failed")
    ids: list[int] = []

    def handler(df: DataFrame, _batch: Batch) -> None:
        ids.extend(row.id for row in headrace.decode(df, form).select("value.id").collect())

    url = f"sqlite:///{tmp_path}/headrace.db"
    gate = Gate("orders", interval="1 second", ledger=url)
    writer = gate.write(read(gate, spark, orders), handler, on_failure=headrace.retry(1, "1 ms"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())
    assert form.marker.exists()
    assert sorted(ids) == list(range(200))
    with Ledger.open(url) as ledger:
        assert ledger.dead_letters.oldest("orders", limit=10) == ()
