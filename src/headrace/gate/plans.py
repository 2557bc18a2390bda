"""What the plan of a stream shows: which gates it reads, and whether it may skip a batch."""

import contextlib
import io
import re
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from headrace.errors import OptionError

# Spark marks with ~ what is computed of a stream.
_STATEFUL: Final = re.compile(
    r"^\W*~(Aggregate|Deduplicate\w*|GlobalLimit|FlatMapGroups\w*WithState\w*|TransformWithState\w*"
    r"|ArrowTransformWithState\w*)\b",
    re.MULTILINE,
)
_SOURCE: Final = re.compile(r"^\W*~StreamingRelation\w*\b", re.MULTILINE)
_GATE: Final = re.compile(r"\bheadrace\.gate=([\w.\-]+)")
_READ: Final = re.compile(r"\bheadrace\.read=([0-9a-f]{32})\b")

# Spark leaves out of a plan's text the fields beyond so many, options among them.
_MOST_FIELDS: Final = "spark.sql.debug.maxToStringFields"


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One source of a stream.

    Attributes:
        gate: the gate before it; None where there is none.
        read: what `Gate.read` named what it loaded; None where that was not used.
    """

    gate: str | None
    read: str | None


def sources_of(df: DataFrame) -> list[StreamSource]:
    """The sources that a query of this stream will have; one that is used twice is two."""
    plan = _analyzed(df)
    begins = [found.start() for found in _SOURCE.finditer(plan)]
    texts = [plan[at:until] for at, until in zip(begins, [*begins[1:], len(plan)], strict=True)]
    return [StreamSource(_first(_GATE, text), _first(_READ, text)) for text in texts]


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
            " would be wrong; use 'stop' or headrace.retry(n), or compute with state in another"
            " query, of what this one writes."
        )
    if len(_SOURCE.findall(plan)) != 1:
        raise OptionError(
            f"on_failure is {last!r}, but what the gate {gate!r} writes is computed from more than"
            " one stream, and a batch cannot be run again from this gate's ranges alone; use 'stop'"
            " or headrace.retry(n), or write each stream by a query of its own."
        )


def _analyzed(df: DataFrame) -> str:
    """The stream's analyzed logical plan, as Spark writes it."""
    conf = df.sparkSession.conf
    before = conf.get(_MOST_FIELDS, None)
    conf.set(_MOST_FIELDS, "10000")
    try:
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            df.explain(extended=True)
    finally:
        if before is None:
            conf.unset(_MOST_FIELDS)
        else:
            conf.set(_MOST_FIELDS, before)
    return written.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0]


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return None if found is None else found[1]
