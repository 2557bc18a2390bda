"""What a session is given once, and what it is built with."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.errors import LedgerError
from headgate.gate import RECOMMENDED_CONF


def test_a_default_ledger_that_cannot_be_opened_is_told_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match="no-such-folder"):
        headgate.register(spark, ledger=f"sqlite:///{tmp_path}/no-such-folder/headgate.db")


def test_a_session_can_be_built_with_what_makes_small_batches_fast() -> None:
    builder = SparkSession.Builder()
    assert headgate.configure(builder) is builder
    assert RECOMMENDED_CONF.items() <= builder._options.items()
