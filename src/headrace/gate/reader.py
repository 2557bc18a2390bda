"""Spark's stream reader behind a gate: wrong options are told before a query starts."""

import uuid
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from headrace.errors import OptionError
from headrace.gate.ledgers import keep_books
from headrace.gate.reads import GateRead, remember
from headrace.gate.registration import concealed
from headrace.source.connector import Connector


class GatedStreamReader(DataStreamReader):
    """Spark's reader, which checks the options on the driver when it loads.

    Spark itself only finds a wrong option when the query runs, and wraps it in a traceback.
    """

    def __init__(
        self,
        spark: SparkSession,
        connector: Connector,
        *,
        gate: str,
        ledger_url: str,
        interval_ms: int,
    ) -> None:
        super().__init__(spark)
        self._connector = connector
        self._gate = gate
        self._ledger_url = ledger_url
        self._of_gate = {
            "headrace.gate": gate,
            "headrace.ledger": ledger_url,
            "headrace.interval": f"{interval_ms} ms",
        }
        self._given: dict[str, str] = {}
        super().format(connector.format)

    def format(self, source: str) -> Self:
        """Refuse any format but the gate's source: another one would not heed the gate.

        Raises:
            OptionError: it is another one.
        """
        if source != self._connector.format:
            raise OptionError(
                f"The format is {source!r}, but behind the gate {self._gate!r} stands"
                f" {self._connector.format}; leave format() out, or read without a gate."
            )
        return self

    def option(self, key: str, value: Any) -> Self:
        """Set an option of the source, over one of the same name in any case; None sets nothing.

        Raises:
            OptionError: the option is the gate's to set.
        """
        if value is None:
            return self
        if key.lower() in {*self._of_gate, "headrace.read"}:
            raise OptionError(f"The option {key} is set by the gate; leave it out here.")
        for same in [name for name in self._given if name.lower() == key.lower()]:
            del self._given[same]
        self._given[key] = _as_spark_writes(value)
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
        """Check the options, reach the source and the ledger; then what Spark does.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
            JournalError: the journal cannot be read.
            SourceError: what is named does not exist.
            LedgerError: the ledger cannot be opened or written.
        """
        self.options(path=path, **options)
        self._connector.check(self._given | self._of_gate)
        keep_books(self._gate, self._ledger_url)
        # Not before, for what Spark is given is without the secrets that it would show.
        for name, value in concealed(self._spark, self._given | self._of_gate).items():
            super().option(name, value)
        read = uuid.uuid4().hex
        super().option("headrace.read", read)
        df = super().load(None, format, schema)
        remember(
            GateRead(read, self._gate, self._ledger_url, df, self._connector, dict(self._given))
        )
        return df


def _as_spark_writes(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
