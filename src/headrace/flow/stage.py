"""What is declared of a flow's stages and channels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Union

from headrace.control.hop_settings import HopSettings
from headrace.flow.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.execution import Batch, OnFailure
    from headrace.flow.channels import Channel

Output = Union["DataFrame", Mapping[str, "DataFrame"], None]
"""What a stage's handler answers: what is written to its one channel, or to each by name."""

Handler = Callable[["DataFrame", "Batch"], Output]
"""What a stage does with a batch."""

Schema = Union[str, "StructType"]
"""What the values on a channel hold, as Spark writes it (``"id bigint, name string"``)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One gated streaming query of a flow, as `Flow.stage` declared it.

    Attributes:
        name: Its name in the flow.
        handler: What it does with a batch.
        reads: The channel that it reads.
        writes: The channels that it writes; none for a sink.
        interval: How long its batches should take.
        on_failure: What an exception in the handler does.
        backfill: When what was deferred is run again.
        derive: What is made of the stream before it is cut into batches.
        options: Of the channel's source, such as ``backpressure.initialRate``.
        schema: What the values that it reads hold; None where it does not say.
        pressure: When it presses the stages before it, and by how much it slows down when it is
            pressed itself.
        place: Where it was declared.
    """

    name: str
    handler: Handler
    reads: str
    writes: tuple[str, ...]
    interval: str | timedelta
    on_failure: "str | OnFailure"
    backfill: str
    derive: "Callable[[DataFrame], DataFrame] | None"
    options: Mapping[str, str]
    schema: Schema | None
    pressure: HopSettings
    place: Place

    def __str__(self) -> str:
        return f"Stage {self.name!r} ({self.place})"


@dataclass(frozen=True, slots=True)
class Link:
    """A channel, as `Flow.channel` declared it.

    Attributes:
        name: Its name in the flow.
        channel: What it is.
        schema: What the values on it hold, by those who write it; None where nobody says.
        place: Where it was declared.
    """

    name: str
    channel: "Channel"
    schema: Schema | None
    place: Place

    def __str__(self) -> str:
        return f"Channel {self.name!r} ({self.place})"
