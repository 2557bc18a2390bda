"""Format for `decode`: the columns that it gives, and how values become them."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values that were decoded.

    Attributes:
        values: a struct for each value, null where that is null or does not fit.
        reasons: why values do not fit, by their number.
    """

    values: pa.StructArray
    reasons: dict[int, str]


class Decoder(Protocol):
    """Decodes values, in a task."""

    def decode(self, values: pa.Array) -> Decoded:
        """All of these values, which are binary; a value's reason has nothing of its content.

        Raises:
            RegistryError: the schema registry cannot be reached.
        """


class Format(Protocol):
    """A format with its schema; a value, which is sent to the tasks."""

    def __hash__(self) -> int:
        """A worker keeps the decoder of each format."""

    def columns(self, spark: SparkSession) -> StructType:
        """Return the schema that values are decoded into.

        Raises:
            OptionError: the schema does not parse, or has a type that Spark does not have.
            RegistryError: the schema registry cannot be reached.
        """

    def decoder(self, columns: StructType) -> Decoder:
        """Return the decoder for a task; made once in each worker process."""
