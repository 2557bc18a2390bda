"""Which streams may go on without one of their batches."""

import contextlib
import io
import re
from typing import Final

from pyspark.sql import DataFrame

from headgate.errors import OptionError

# Spark marks with ~ what is computed of a stream.
_STATEFUL: Final = re.compile(
    r"^\W*~(Aggregate|Deduplicate\w*|GlobalLimit|FlatMapGroups\w*WithState\w*|TransformWithState\w*"
    r"|ArrowTransformWithState\w*)\b",
    re.MULTILINE,
)
_SOURCE: Final = re.compile(r"^\W*~StreamingRelation\w*\b", re.MULTILINE)


def refuse_if_it_cannot_skip(df: DataFrame, gate: str, last: str) -> None:
    """Raise unless the stream's batches are computed each for itself, from one source.

    Args:
        df: the stream.
        gate: whose it is.
        last: the failure policy that skips batches.

    Raises:
        OptionError: a batch is more than what the gate's source gave it.
    """
    plan = _analyzed(df)
    stateful = _STATEFUL.search(plan)
    if stateful is not None:
        raise OptionError(
            f"on_failure is {last!r}, but what the gate {gate!r} writes is computed with state"
            f" ({stateful[1]}): without one of its batches the state, and every batch after it,"
            " would be wrong; use 'stop' or headgate.retry(n), or compute with state in another"
            " query, of what this one writes."
        )
    if len(_SOURCE.findall(plan)) != 1:
        raise OptionError(
            f"on_failure is {last!r}, but what the gate {gate!r} writes is computed from more than"
            " one stream, and a batch cannot be run again from this gate's ranges alone; use 'stop'"
            " or headgate.retry(n), or write each stream by a query of its own."
        )


def _analyzed(df: DataFrame) -> str:
    """The stream's analyzed logical plan, as Spark writes it."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        df.explain(extended=True)
    return written.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0]
