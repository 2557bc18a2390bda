"""Which stage of a flow comes after which."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Self

from headrace.flow.stage import Link, Stage


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages and channels by name, in the order in which they were declared.

    Channels of the same place are one: the lanes of a journal, of which each has one writer, are
    all read by whoever reads one of them.
    """

    stages: Mapping[str, Stage]
    links: Mapping[str, Link]

    def upstream(self, stage: str) -> tuple[str, ...]:
        """The stages directly before one: those that write what it reads."""
        return self.writers(self.stages[stage].reads)

    def downstream(self, stage: str) -> tuple[str, ...]:
        """The stages directly after one: those that read what it writes."""
        written = {self._place(channel) for channel in self.stages[stage].writes}
        return tuple(
            other.name for other in self.stages.values() if self._place(other.reads) in written
        )

    def writers(self, channel: str) -> tuple[str, ...]:
        """The stages that write a channel."""
        place = self._place(channel)
        return tuple(
            stage.name
            for stage in self.stages.values()
            if place in {self._place(written) for written in stage.writes}
        )

    def readers(self, channel: str) -> tuple[str, ...]:
        """The stages that read a channel."""
        place = self._place(channel)
        return tuple(
            stage.name for stage in self.stages.values() if self._place(stage.reads) == place
        )

    def merged(self) -> Self:
        """The same with the channels of one place as one, under the name that came first."""
        names: dict[str, str] = {}
        for name in self.links:
            names.setdefault(self._place(name), name)
        first = {name: names[self._place(name)] for name in self.links}
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

    def _place(self, channel: str) -> str:
        return self.links[channel].channel.where if channel in self.links else channel

    def cycle(self) -> list[str] | None:
        """Stages of which each comes directly after the one before, and the first is the last."""
        sorter = TopologicalSorter({name: self.upstream(name) for name in self.stages})
        try:
            sorter.prepare()
        except CycleError as error:
            found: list[str] = error.args[1]
            return found
        return None

    def layers(self) -> list[list[str]]:
        """The stages, each one layer below the lowest of those directly before it."""
        depth: dict[str, int] = {}
        order = TopologicalSorter({name: self.upstream(name) for name in self.stages})
        for name in order.static_order():
            depth[name] = max((depth[before] + 1 for before in self.upstream(name)), default=0)
        rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for name in self.stages:
            rows[depth[name]].append(name)
        return rows
