"""Memory that large requests have left is given back."""

import pyarrow as pa
import pytest

from headrace.receivers import memory_budget


def test_unused_memory_is_given_back_and_what_is_used_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = pa.array(range(100_000))
    memory_budget.give_back()
    assert kept.to_pylist() == list(range(100_000))
    assert not caplog.records
