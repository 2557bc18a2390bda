"""Declarations of a flow: its stages, the channels between them, and the graph that they make."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, Union

from headrace.control.pressure import HopSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.execution import Batch, OnFailure
    from headrace.flow.channels import Channel

Output = Union["DataFrame", Mapping[str, "DataFrame"], None]
"""Output of a stage's handler: the records for its one channel, or for each by name."""

Handler = Callable[["DataFrame", "Batch"], Output]
"""Handler of a stage's batch."""

Schema = Union[str, "StructType"]
"""Schema of the values on a channel, as Spark writes it (``"id bigint, name string"``)."""


class RunOptions(TypedDict, total=False):
    """Options of a stage's batches; the defaults are those of `Stage`."""

    interval: str | timedelta
    on_failure: "str | OnFailure"
    on_outage: str
    backfill: str


def option_text(value: object) -> str:
    """A value as Spark writes it in an option.

    >>> option_text(True), option_text(5)
    ('true', '5')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a user's file."""

    file: str
    line: int

    @classmethod
    def of_caller(cls) -> Self:
        """The line that called the function which asks."""
        frame = sys._getframe(2)
        return cls(frame.f_code.co_filename, frame.f_lineno)

    def __str__(self) -> str:
        path = Path(self.file)
        is_below = path.is_relative_to(Path.cwd())
        return f"{path.relative_to(Path.cwd()) if is_below else path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One gated streaming query of a flow, with the arguments of `Flow.stage`."""

    name: str
    handler: Handler
    reads: str
    writes: tuple[str, ...]
    derive: "Callable[[DataFrame], DataFrame] | None"
    options: Mapping[str, str]
    schema: Schema | None
    pressure: HopSettings
    declared_at: SourceLine
    interval: str | timedelta = "1 second"
    on_failure: "str | OnFailure" = "stop"
    on_outage: str = "hold"
    backfill: str = "spare"

    def __str__(self) -> str:
        return f"Stage {self.name!r} ({self.declared_at})"


@dataclass(frozen=True, slots=True)
class Link:
    """A channel in its flow, with the arguments of `Flow.channel`."""

    name: str
    channel: "Channel"
    schema: Schema | None
    declared_at: SourceLine

    def __str__(self) -> str:
        return f"Channel {self.name!r} ({self.declared_at})"


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages and channels by name, in the order in which they were declared.

    Channels at the same location are one: the lanes of a journal, of which each has one writer, are
    all read by whoever reads one of them.
    """

    stages: Mapping[str, Stage]
    links: Mapping[str, Link]

    def upstream(self, stage: str) -> tuple[str, ...]:
        """The stages directly before one: those that write what it reads."""
        return self.writers(self.stages[stage].reads)

    def downstream(self, stage: str) -> tuple[str, ...]:
        """The stages directly after one: those that read what it writes."""
        written = {self._location(channel) for channel in self.stages[stage].writes}
        return tuple(
            other.name for other in self.stages.values() if self._location(other.reads) in written
        )

    def writers(self, channel: str) -> tuple[str, ...]:
        """The stages that write a channel."""
        location = self._location(channel)
        return tuple(
            stage.name
            for stage in self.stages.values()
            if location in map(self._location, stage.writes)
        )

    def readers(self, channel: str) -> tuple[str, ...]:
        """The stages that read a channel."""
        location = self._location(channel)
        return tuple(
            stage.name for stage in self.stages.values() if self._location(stage.reads) == location
        )

    def merged(self) -> Self:
        """The same with the channels of one location as one, under the name that came first."""
        names: dict[str, str] = {}
        for name in self.links:
            names.setdefault(self._location(name), name)
        first = {name: names[self._location(name)] for name in self.links}
        stages = {
            stage.name: replace(
                stage,
                reads=first[stage.reads],
                writes=tuple(dict.fromkeys(first[written] for written in stage.writes)),
            )
            for stage in self.stages.values()
        }
        links = {name: link for name, link in self.links.items() if first[name] == name}
        return type(self)(stages, links)

    def cycle(self) -> list[str] | None:
        """Stages of which each comes directly after the one before, and the first is the last."""
        try:
            self._sorter().prepare()
        except CycleError as error:
            found: list[str] = error.args[1]
            return found
        return None

    def layers(self) -> list[list[str]]:
        """The stages, each one layer below the lowest of those directly before it."""
        depth: dict[str, int] = {}
        for name in self._sorter().static_order():
            depth[name] = max((depth[before] + 1 for before in self.upstream(name)), default=0)
        rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for name in self.stages:
            rows[depth[name]].append(name)
        return rows

    def _sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter({name: self.upstream(name) for name in self.stages})

    def _location(self, channel: str) -> str:
        return self.links[channel].channel.place if channel in self.links else channel
