"""Spark's stream reader behind a gate, and checks of a stream's plan.

A DataFrame's plan shows which gates read the stream. So `Gate.write` can check that its own gate
reads the stream, and reads it only once.
"""

import contextlib
import io
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from headrace.decoding import OPTION, Format
from headrace.errors import OptionError
from headrace.gate.execution.gate_state import use_ledger
from headrace.gate.execution.spark_session import hide_secrets
from headrace.gate.source.connector import Connector

# Spark marks the streaming operators of a plan with ~.
_STATEFUL: Final = re.compile(
    r"^\W*~(Aggregate|Deduplicate\w*|GlobalLimit|FlatMapGroups\w*WithState\w*|TransformWithState\w*"
    r"|ArrowTransformWithState\w*)\b",
    re.MULTILINE,
)
SEVERAL_SOURCES: Final = "several sources"
_SOURCE: Final = re.compile(r"^\W*~StreamingRelation\w*\b", re.MULTILINE)
_NAME: Final = re.compile(r', name="(\w+)"$', re.MULTILINE)
_GATE: Final = re.compile(r"\bheadrace\.gate=([\w.\-]+)")
_READ: Final = re.compile(r"\bheadrace\.read=([0-9a-f]{32})\b")

SOURCE_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Spark setting that gives every source of a query a name, also in the checkpoint."""

_SOON_S: Final = 0.05
"""Maximum time (s) for which ``load`` waits for the check of options before Spark loads the stream.
If the check fails within this time, Spark does not load the stream."""

# Spark omits the fields beyond this number from a plan's text, including options.
_MOST_FIELDS: Final = "spark.sql.debug.maxToStringFields"


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Source of a stream: its gate and the id of its `Gate.read`, each None if unknown."""

    gate: str | None
    read: str | None


def sources_of(df: DataFrame) -> list[StreamSource]:
    """Return the sources of a stream. A DataFrame that is used twice counts as two sources."""
    plan = _analyzed(df)
    begins = [match.start() for match in _SOURCE.finditer(plan)]
    texts = [plan[at:until] for at, until in zip(begins, [*begins[1:], len(plan)], strict=True)]
    return [_source(text) for text in texts]


def _source(text: str) -> StreamSource:
    name = _first(_READ, text)
    with _lock:
        read = _reads.get(name or "")
    # Spark redacts values in a plan that look like secrets, such as the gate "password-resets".
    return StreamSource(_first(_GATE, text) if read is None else read.gate, name)


def name_of_source(df: DataFrame) -> str | None:
    """Return the name of a stream's source in its checkpoint; None if Spark stores no names."""
    if df.sparkSession.conf.get(SOURCE_EVOLUTION, "false") != "true":
        return None
    plan = _analyzed(df)
    match = _SOURCE.search(plan)
    return None if match is None else _first(_NAME, plan[match.start() :])


def state_of_plan(df: DataFrame) -> str | None:
    """Return a stateful operator in a stream's plan; None if the batches are independent.

    A stream of several sources counts as stateful, because most such streams are joins.
    """
    plan = _analyzed(df)
    stateful = _STATEFUL.search(plan)
    if stateful is not None:
        return stateful[1]
    return SEVERAL_SOURCES if len(_SOURCE.findall(plan)) != 1 else None


def check_batches_can_be_skipped(state: str | None, gate: str, last: str) -> None:
    """Raise `OptionError` if a batch depends on more than the offsets of the gate's source.

    This is so for a stream with state or with several sources. ``state`` is the result of
    `state_of_plan`, and ``last`` is the failure policy that skips batches.
    """
    if state not in {None, SEVERAL_SOURCES}:
        raise OptionError(
            f"on_failure is {last!r}, but the gate {gate!r} writes a stream with state ({state}):"
            " without one of its batches, the state and all later batches would be wrong; use"
            " 'stop' or headrace.retry(attempts), or compute the state in another query that reads"
            " the output of this query."
        )
    if state is not None:
        raise OptionError(
            f"on_failure is {last!r}, but the gate {gate!r} writes a DataFrame of more than one"
            " stream, and a batch cannot be run again from this gate's ranges alone; use 'stop' or"
            " headrace.retry(attempts), or write each stream by a query of its own."
        )


def _analyzed(df: DataFrame) -> str:
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
    match = pattern.search(text)
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class GateRead:
    """Stream that a gate's reader has loaded, with the user's options.

    ``name`` is unique among all loaded streams. The ledger's URL includes the password, if any.
    """

    name: str
    gate: str
    ledger_url: str
    df: DataFrame
    connector: Connector
    options: Mapping[str, str]


_lock: Final = threading.Lock()
_reads: Final[dict[str, GateRead]] = {}


def remember(read: GateRead) -> None:
    """Store a loaded stream, so that `read_of` finds it."""
    with _lock:
        _reads[read.name] = read


def read_of(df: DataFrame, gate: str, ledger_url: str) -> GateRead:
    """Return the loaded stream from which a DataFrame of this gate is derived.

    Raises `OptionError` if the DataFrame is no stream, or is not read through this gate, or reads
    more than one source through it.
    """
    if not df.isStreaming:
        raise OptionError(
            f"The gate {gate!r} was given a batch DataFrame, but a gate writes a stream; give the"
            " DataFrame of gate.read(...).load(), or a DataFrame derived from it."
        )
    sources = sources_of(df)
    own = [source for source in sources if source.gate == gate]
    if len(own) > 1:
        raise OptionError(
            f"The DataFrame reads {len(own)} sources through the gate {gate!r}, but a gate limits"
            " one source; read each source with its own gate."
        )
    with _lock:
        read = _reads.get(own[0].read or "") if own else None
    if read is None:
        other_gates = sorted({source.gate for source in sources if source.gate not in {None, gate}})
        through = f"through the gate {other_gates[0]!r}" if other_gates else "with no Gate.read"
        raise OptionError(
            f"The DataFrame for the gate {gate!r} was read {through}; write a DataFrame that"
            f" {gate!r} itself has read, or one derived from it."
        )
    if read.ledger_url != ledger_url:
        raise OptionError(
            f"The DataFrame for the gate {gate!r} was read with another ledger than this gate's;"
            " use one Gate to read and to write."
        )
    return read


class GatedReading(DataStreamReader if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixin for Spark's stream reader that checks the options in ``load``.

    Spark itself finds a wrong option only when the query runs, and wraps the error in a traceback.
    """

    def __init__(
        self,
        spark: SparkSession,
        connector: Connector,
        *,
        gate: str,
        ledger_url: str,
        pace: Mapping[str, str],
        decode: Format | None = None,
    ) -> None:
        super().__init__(spark)
        self._session = spark
        self._connector = connector
        self._gate = gate
        self._ledger_url = ledger_url
        self._of_gate = {
            "headrace.gate": gate,
            "headrace.ledger": ledger_url,
            **pace,
        }
        self._raw = {} if decode is None else {OPTION: self._text_of(decode)}
        self._has_format = decode is not None
        super().format(connector.format)

    def format(self, source: str) -> Self:
        """Accept only the format of the gate's source: other sources would ignore the gate.

        Raises:
            OptionError: the format is not the format of the gate's source.
        """
        if source != self._connector.format:
            raise OptionError(
                f"The format is {source!r}, but the gate {self._gate!r} reads"
                f" {self._connector.format}; leave format() out, or read without a gate."
            )
        return self

    def option(self, key: str, value: Any) -> Self:
        """Set an option of the source. Names are case-insensitive, and None sets nothing.

        Raises:
            OptionError: only the gate may set this option, or `Gate.read` has already set it.
        """
        if value is None:
            return self
        if key.lower() == OPTION and self._has_format:
            raise OptionError(
                f"The option {key} is set, and Gate.read was given {OPTION}; leave one of them out."
            )
        if key.lower() in {*self._of_gate, "headrace.read"}:
            raise OptionError(f"The option {key} is set by the gate; leave it out here.")
        for same in [name for name in self._raw if name.lower() == key.lower()]:
            del self._raw[same]
        self._raw[key] = self._text_of(value)
        return self

    def options(self, **options: Any) -> Self:
        """Set options of the source."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002  (Spark's own name)
        schema: StructType | str | None = None,
        **options: Any,
    ) -> DataFrame:
        """Check the options, the source and the ledger, then load the stream as Spark does.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
            JournalError: the journal cannot be read.
            SourceError: a named topic, partition or journal does not exist.
            LedgerError: the ledger cannot be opened or written.
        """
        self.options(path=path, **options)
        checked = _beside(self._check)
        wait([checked], _SOON_S)
        if checked.done():
            checked.result()
        # Spark receives the options without the secrets that it would show.
        for name, value in hide_secrets(self._session, self._raw | self._of_gate).items():
            super().option(name, value)
        read = uuid.uuid4().hex
        super().option("headrace.read", read)
        try:
            df: DataFrame = super().load(None, format, schema)
        except Exception:
            checked.result()  # raises a one-sentence error in place of Spark's
            raise
        checked.result()
        self._connector.source.check(df.schema, self._raw | self._of_gate)
        remember(GateRead(read, self._gate, self._ledger_url, df, self._connector, dict(self._raw)))
        return df

    def _text_of(self, value: Any) -> str:
        """Return an option's value as text, as Spark does. Text of a `Format` includes secrets."""
        if isinstance(value, Format):
            return json.dumps(value.option(self._session))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _check(self) -> None:
        self._connector.check(self._raw | self._of_gate)
        use_ledger(self._gate, self._ledger_url)


def _beside(check: Callable[[], None]) -> "Future[None]":
    """Run a check of options in a thread while Spark loads the stream.

    The first time, the check and the load take half a second each. The thread is a daemon, so that
    it does not delay the end of an interrupted program.
    """
    checked: Future[None] = Future()

    def run() -> None:
        try:
            check()
        except BaseException as error:  # noqa: BLE001  (raised by the future's result)
            checked.set_exception(error)
        else:
            checked.set_result(None)

    threading.Thread(target=run, name="headrace check", daemon=True).start()
    return checked


class GatedStreamReader(GatedReading, DataStreamReader):
    """Stream reader behind a gate, for a session with its own JVM (not Spark Connect)."""
