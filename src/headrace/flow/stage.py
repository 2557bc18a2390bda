"""Declarations of a flow: stages, channels and their graph, and checks of the declarations."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypedDict, Union

from headrace.core.options import require_number
from headrace.errors import HeadraceError, OptionError
from headrace.gate import HopSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.flow.kafka_channel import KafkaChannel
    from headrace.gate import Batch, Last, OnFailure, OutageWord

DEFAULT_CHROOT: Final = "/headrace"
"""ZooKeeper node above all of Headrace's nodes, if `hosts` names no root node."""

_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")
_CHROOT: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Settings of the ZooKeeper for a flow's signals.

    Attributes:
        hosts: The servers, as ``host:port,host:port``, followed by the root node of all data, such
            as ``/prod/headrace``. Default root: ``/headrace``. A missing root is created.
        user: The user (digest authentication), the same for all stages of a flow. Default: None,
            which gives every client all rights.
        password: The user's password. Only clients with this password can read, write and delete
            the nodes of the user's flows.
        tls: Whether to use TLS and verify the server's certificate, which must be for the name or
            address in `hosts`. Requires the servers' secure port.
        ca_file: The file with the certificates of trusted authorities (PEM), with TLS. Default: the
            system's authorities.
        certificate_file: The file with this process's own certificate (PEM), for servers that
            request a client certificate.
        key_file: The file with the certificate's key, if the certificate's file does not have it.
        session_timeout_s: The time without a message after which the servers end a stage's session
            and delete its nodes (s); above 0. Default: 10. The servers enforce their own bounds.
            The timeout should not exceed the lease. Too long: the signals of a dead stage stay
            longer. Too short: a pause of the machine ends the session, and the new session takes a
            second or two.
        unreachable: The reaction if no server responds at the start: ``wait`` (the default) logs
            the outage and connects later; ``refuse`` raises an error.
        start_timeout_s: The time to wait for a response at the start (s); above 0. Default: 10.

    Raises:
        OptionError: A value is out of range or contradicts another value.
    """

    hosts: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    session_timeout_s: float = 10.0
    unreachable: Literal["wait", "refuse"] = "wait"
    start_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        self._check_hosts()
        if (self.user is None) != (self.password is None):
            raise OptionError(
                f"The user of ZooKeeper is {self.user!r}, and a password was"
                f" {'not ' if self.password is None else ''}given; give both or neither."
            )
        if self.user is not None and (not self.user or ":" in self.user):
            raise OptionError(
                f"The user of ZooKeeper is {self.user!r}; it must have 1 or more characters, none"
                " of them ':'."
            )
        if self.key_file is not None and self.certificate_file is None:
            raise OptionError("key_file is set without certificate_file; set both.")
        if not self.tls and (self.ca_file is not None or self.certificate_file is not None):
            raise OptionError(
                f"Certificates are given, but tls is {self.tls!r} for ZooKeeper at {self.servers};"
                " set tls to True, and use the servers' secure port."
            )
        if self.unreachable not in ("wait", "refuse"):
            raise OptionError(
                f"unreachable is {self.unreachable!r}; it must be 'wait' or 'refuse'."
            )
        for name in ("session_timeout_s", "start_timeout_s"):
            require_number(name, getattr(self, name), "s", above=True)

    @property
    def servers(self) -> str:
        """The servers in `hosts`, without the root node."""
        return self.hosts.partition("/")[0]

    @property
    def chroot(self) -> str:
        """ZooKeeper node above all of Headrace's nodes: from `hosts`, or the default."""
        _, slash, path = self.hosts.partition("/")
        return slash + path or DEFAULT_CHROOT

    def _check_hosts(self) -> None:
        matches = [_HOST.fullmatch(host) for host in self.servers.split(",")]
        ports = [int(host[1]) for host in matches if host and host[1]]
        is_good = all(matches) and all(0 < port < 2**16 for port in ports)
        if not is_good or not _CHROOT.fullmatch(self.chroot) or _has_dots(self.chroot):
            raise OptionError(
                f"The hosts of ZooKeeper are {self.hosts!r}; write them like"
                " 'zk1:2181,zk2:2181' or 'zk1:2181,zk2:2181/prod/headrace'."
            )


def _has_dots(path: str) -> bool:
    return any(name in (".", "..") for name in path.split("/"))


Output = Union["DataFrame", Mapping[str, "DataFrame"], None]
"""Result of a stage's handler: the records of its only channel, or a dictionary of records by
channel, or None for a stage that writes no channel."""

Handler = Callable[["DataFrame", "Batch"], Output]
"""Function that processes a batch of a stage, and returns the records to write."""

Schema = Union[str, "StructType"]
"""Schema of a channel's values, as a Spark type or as DDL (``"id bigint, name string"``)."""


class RunOptions(TypedDict, total=False):
    """Keyword arguments of `Flow.stage` for a stage's batches. Defaults: see `Stage`."""

    interval: str | timedelta
    on_failure: "Last | OnFailure"
    on_outage: "OutageWord"
    backfill: str


def caller_line() -> str:
    """Return the file and line that called the caller of this function, such as ``shop.py:12``."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    is_below = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if is_below else path}:{frame.f_lineno}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Declaration of a stage of a flow, with the arguments of `Flow.stage`.

    A stage is a gated streaming query. ``declared_at`` is the file and line of the declaration.
    """

    name: str
    handler: Handler
    reads: str
    writes: tuple[str, ...]
    derive: "Callable[[DataFrame], DataFrame] | None"
    options: Mapping[str, str]
    schema: Schema | None
    pressure: HopSettings
    declared_at: str
    interval: str | timedelta = "1 second"
    on_failure: "Last | OnFailure" = "stop"
    on_outage: "OutageWord" = "hold"
    backfill: str = "spare"

    def __str__(self) -> str:
        return f"Stage {self.name!r} ({self.declared_at})"


@dataclass(frozen=True, slots=True)
class Link:
    """Declaration of a channel in a flow. The fields are the arguments of `Flow.channel`."""

    name: str
    channel: "KafkaChannel"
    schema: Schema | None
    declared_at: str

    def __str__(self) -> str:
        return f"Channel {self.name!r} ({self.declared_at})"


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages and channels of a flow by name, in the order of declaration."""

    stages: Mapping[str, Stage]
    links: Mapping[str, Link]

    def upstream(self, stage: str) -> tuple[str, ...]:
        """Return the names of the stages that write the channel that a stage reads."""
        return self.writers(self.stages[stage].reads)

    def downstream(self, stage: str) -> tuple[str, ...]:
        """Return the names of the stages that read a channel that a stage writes."""
        written = self.stages[stage].writes
        return tuple(reader.name for reader in self.stages.values() if reader.reads in written)

    def writers(self, channel: str) -> tuple[str, ...]:
        """Return the names of the stages that write a channel."""
        return tuple(stage.name for stage in self.stages.values() if channel in stage.writes)

    def readers(self, channel: str) -> tuple[str, ...]:
        """Return the names of the stages that read a channel."""
        return tuple(stage.name for stage in self.stages.values() if stage.reads == channel)

    def cycle(self) -> list[str] | None:
        """Return the stages of a cycle, with the first stage again at the end; None if acyclic."""
        try:
            self._sorter().prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1]
            return cycle
        return None

    def layers(self) -> list[list[str]]:
        """Return the stages' names by layer. A stage's upstream stages are in earlier layers."""
        depth: dict[str, int] = {}
        for name in self._sorter().static_order():
            depth[name] = max((depth[before] + 1 for before in self.upstream(name)), default=0)
        rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for name in self.stages:
            rows[depth[name]].append(name)
        return rows

    def _sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter({name: self.upstream(name) for name in self.stages})


_SYNONYMS: Final = {
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
}
"""Type names in Spark's DDL, and the synonym that replaces each of them before schemas are
compared."""


class DeclaredFlow(Protocol):
    """Interface of `Flow` for modules that check and run a flow without importing `Flow`."""

    name: str
    ledger: str
    checkpoints: str
    signals: ZookeeperSettings | None

    @property
    def graph(self) -> Graph:
        """Graph of the stages and channels declared so far."""
        ...

    def gate(self, stage: str) -> str:
        """Return the name of a stage's gate in the ledger."""
        ...


def check(flow: DeclaredFlow) -> None:
    """Raise the first error in a flow's declarations, with the file and line of the declaration."""
    graph = flow.graph
    if not graph.stages:
        raise OptionError(f"Flow {flow.name!r} has no stage; declare one with flow.stage(...).")
    for stage in graph.stages.values():
        _check_stage(flow, stage)
        _check_channels(graph, stage)
    for link in graph.links.values():
        _check_link(graph, link)
    for first, second in combinations(graph.links.values(), 2):
        if first.channel.location == second.channel.location:
            raise OptionError(
                f"{second} is the same as {first}: {first.channel.location}; declare the topic as"
                " one channel, and name this channel in every stage."
            )
    cycle = graph.cycle()
    if cycle is not None:
        raise OptionError(
            f"{graph.stages[cycle[0]]} is in a cycle: {' -> '.join(cycle)}; a flow must have no"
            " cycle, so let one of these stages write another channel."
        )
    for stage in graph.stages.values():
        _check_schema(graph, stage)


def refuse_aliases(flow: DeclaredFlow, identities: Mapping[str, str]) -> None:
    """Raise OptionError if two channels are the same topic, for example under two broker names.

    Otherwise a stage could write the topic that it reads, a cycle that the graph does not show.
    ``identities`` has the topic id of each channel, by channel name (`KafkaChannel.identity`).
    """
    first: dict[str, Link] = {}
    for name, identity in identities.items():
        link = flow.graph.links[name]
        first_link = first.setdefault(identity, link)
        if first_link.channel.location != link.channel.location:
            raise OptionError(
                f"{link} is the same as {first_link} at another address:"
                f" {link.channel.location} and {first_link.channel.location} have the same id;"
                " declare the topic as one channel, and name this channel in every stage."
            )


@contextmanager
def errors_of(stage: Stage) -> Iterator[None]:
    """In the ``with`` block, add the stage and its line of declaration to the text of errors."""
    try:
        yield
    except HeadraceError as error:
        raise type(error)(f"{stage}: {error}") from error


def _check_stage(flow: DeclaredFlow, stage: Stage) -> None:
    from headrace.gate import (  # noqa: PLC0415
        Gate,
        check_handler,
        outage_settings,
        parse_on_failure,
        parse_schedule,
        with_outages,
    )

    if not callable(stage.handler):
        raise OptionError(
            f"{stage} decorates {stage.handler!r}, which cannot be called; decorate a function"
            " that takes a DataFrame and a batch."
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
            declared = ", ".join(map(repr, graph.links)) or "none"
            raise OptionError(
                f"{stage} {verb} the channel {name!r}, which is not declared; the channels are"
                f" {declared}, so name one of these or declare it with flow.channel(...)."
            )
    if len(set(stage.writes)) < len(stage.writes):
        raise OptionError(
            f"{stage} names a channel twice in {stage.writes!r}; name each channel once."
        )


def _check_link(graph: Graph, link: Link) -> None:
    if not graph.writers(link.name) and not graph.readers(link.name):
        raise OptionError(
            f"{link} is neither written nor read by any stage; let a stage use the channel, or"
            " remove the declaration."
        )


def _check_schema(graph: Graph, stage: Stage) -> None:
    link = graph.links[stage.reads]
    if stage.schema is None or link.schema is None:
        return
    reads, holds = _normalized(stage.schema), _normalized(link.schema)
    if reads != holds:
        raise OptionError(
            f"{stage} reads values with the schema {reads!r}, but {link} has the schema {holds!r};"
            " declare the same schema for both."
        )


def _normalized(schema: Schema) -> str:
    """Return a schema as text in a normal form: equal schemas have equal texts.

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
