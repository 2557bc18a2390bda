from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame

from headrace.gate.execution.health import HandlerHealth


def frame(*, is_empty: bool) -> DataFrame:
    return cast(DataFrame, SimpleNamespace(isEmpty=lambda: is_empty))


@pytest.mark.parametrize(
    ("is_empty", "is_dense", "passes"), [(False, False, 1), (True, False, 0), (True, True, 1)]
)
def test_a_run_passes_if_it_had_records(*, is_empty: bool, is_dense: bool, passes: int) -> None:
    """An empty batch says nothing of the sink, and would convict a record of its outage."""
    health = HandlerHealth()
    health.note(frame(is_empty=False), is_single=True)
    assert health.passes == 0, "nobody waits for one"
    with health:
        health.note(frame(is_empty=is_empty), is_dense=is_dense, is_single=True)
    assert health.passes == passes


def test_a_run_of_which_nothing_can_be_known_does_not_pass() -> None:
    def fail() -> bool:
        raise ConnectionError("Spark has gone")

    health = HandlerHealth()
    with health:
        health.note(cast(DataFrame, SimpleNamespace(isEmpty=fail)), is_single=True)
    assert health.passes == 0
