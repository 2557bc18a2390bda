"""Errors of a declaration, found before anything is opened or started."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, OptionError
from headrace.flow.stage import Graph, Link, Schema, Stage

if TYPE_CHECKING:
    from headrace.flow.flow import Flow

_SYNONYMS: Final = {
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
}
"""Other words that Spark's DDL has for its types."""


def check(flow: "Flow") -> None:
    """Raise the first error of a flow, with the file and line of the declaration."""
    graph = flow.graph
    if not graph.stages:
        raise OptionError(f"Flow {flow.name!r} has no stage; declare one with flow.stage(...).")
    for stage in graph.stages.values():
        _check_stage(flow, stage)
        _check_channels(graph, stage)
    for link in graph.links.values():
        _check_link(graph, link)
    for one, other in combinations(graph.links.values(), 2):
        if one.channel.written_place == other.channel.written_place:
            raise OptionError(
                f"{other} is what {one} is: {one.channel.location}; declare it once, and let every"
                " stage name that."
            )
    cycle = graph.cycle()
    if cycle is not None:
        raise OptionError(
            f"{graph.stages[cycle[0]]} comes after itself: {' -> '.join(cycle)}; a flow goes one"
            " way, so let one of these write another channel."
        )
    for stage in graph.stages.values():
        _check_schema(graph, stage)


def refuse_aliases(flow: "Flow", identities: Mapping[str, str]) -> None:
    """Refuse two channels that are one thing, such as a topic under two names of its brokers.

    A stage that writes what it reads would feed itself, and the graph would not show it.

    Args:
        flow: The flow.
        identities: The ids of its channels by name, as `Channel.identity` says them.
    """
    first: dict[str, Link] = {}
    for name, identity in identities.items():
        link = flow.graph.links[name]
        other = first.setdefault(identity, link)
        if other.channel.place != link.channel.place:
            raise OptionError(
                f"{link} is what {other} is, by another address: {link.channel.location} and"
                f" {other.channel.location} have the same id; declare it once, and let every stage"
                " name that."
            )


@contextmanager
def errors_of(stage: Stage) -> Iterator[None]:
    """Name the stage, and where it was declared, in an error that is raised within."""
    try:
        yield
    except HeadraceError as error:
        raise type(error)(f"{stage}: {error}") from error


def _check_stage(flow: "Flow", stage: Stage) -> None:
    from headrace.backfill import parse_schedule  # noqa: PLC0415  (which bring Spark)
    from headrace.execution import Gate  # noqa: PLC0415
    from headrace.execution.batch import check_handler  # noqa: PLC0415
    from headrace.execution.policy import parse_on_failure, with_outages  # noqa: PLC0415
    from headrace.source.source_options import outage_settings  # noqa: PLC0415

    if not callable(stage.handler):
        raise OptionError(
            f"{stage} decorates {stage.handler!r}, which cannot be called; let it decorate a"
            " function of a DataFrame and a batch."
        )
    with errors_of(stage):
        Gate(flow.gate(stage.name), interval=stage.interval, ledger=flow.ledger)
        with_outages(
            parse_on_failure(stage.on_failure), stage.on_outage, outage_settings(stage.options)
        )
        parse_schedule(stage.backfill)
        check_handler(stage.handler)


def _check_channels(graph: Graph, stage: Stage) -> None:
    for verb, name in [("reads", stage.reads), *(("writes", name) for name in stage.writes)]:
        if name not in graph.links:
            known = ", ".join(map(repr, graph.links)) or "none"
            raise OptionError(
                f"{stage} {verb} the channel {name!r}, which is not declared; the channels are"
                f" {known}, so name one of these or declare it with flow.channel(...)."
            )
    if len(set(stage.writes)) < len(stage.writes):
        raise OptionError(f"{stage} names a channel twice in {stage.writes!r}; name each once.")


def _check_link(graph: Graph, link: Link) -> None:
    if not graph.writers(link.name) and not graph.readers(link.name):
        raise OptionError(
            f"{link} is neither written nor read by any stage; let one use it, or leave it out."
        )
    writers = [stage for stage in graph.stages.values() if link.name in stage.writes]
    if len(writers) > 1 and link.channel.has_one_writer:
        other, stage = writers[:2]
        raise OptionError(
            f"{stage} writes the channel {link.name!r} ({link.channel.location}), and so does"
            f" {other}; a lane of a journal has one writer, so declare another channel for it that"
            " is another lane of the same journal: whoever reads one lane reads all."
        )


def _check_schema(graph: Graph, stage: Stage) -> None:
    link = graph.links[stage.reads]
    if stage.schema is None or link.schema is None:
        return
    reads, holds = _normalized(stage.schema), _normalized(link.schema)
    if reads != holds:
        raise OptionError(
            f"{stage} reads values with the schema {reads!r}, but {link} holds {holds!r}; change"
            " one of them."
        )


def _normalized(schema: Schema) -> str:
    """A schema in the one way in which it is compared.

    >>> _normalized("id LONG,  `name` string") == _normalized("id: bigint, name: STRING")
    True
    """
    if not isinstance(schema, str):
        fields = (f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        schema = ", ".join(fields)
    text = re.sub(r"\s*([<>,:()])\s*", r"\1", schema.replace("`", "").strip())
    text = re.sub(r"[\s:]+", " ", text).lower()
    text = re.sub(r"(?<=[ <])[a-z]+", lambda word: _SYNONYMS.get(word[0], word[0]), text)
    return text.replace(",", ", ")
