"""A flow: stages in a chain, declared in Python, checked before anything starts."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from headrace.core.options import option_text, require_name
from headrace.errors import OptionError
from headrace.flow.stage import (
    Graph,
    Handler,
    Link,
    RunOptions,
    Schema,
    Stage,
    ZookeeperSettings,
    caller_line,
    check,
)
from headrace.gate import HopSettings, normalize_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.flow.kafka_channel import KafkaChannel
    from headrace.flow.running import RunningFlow


class Flow:
    """Stages and the channels between them: a directed graph without cycles.

    Each stage is a gated streaming query with its own checkpoint, and each reads one channel, into
    which any number of stages may write. A stage that cannot keep up has those directly before it
    slow down, and those before them only if that is not enough.

    ::

        flow = Flow("orders", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
        flow.channel("raw", kafka("orders.raw", servers="localhost:9092"))
        flow.channel("clean", kafka("orders.clean", servers="localhost:9092"))

        @flow.stage("clean", reads="raw", writes="clean")
        def clean(df, batch):
            return df.select("key", "value").where("value IS NOT NULL")

        @flow.stage("store", reads="clean")
        def store(df, batch):
            df.write.mode("append").parquet("orders")

        with flow.start(spark) as running:
            running.await_termination()

    Args:
        name: 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
        ledger: The URL of the ledger of all stages.
        checkpoints: The folder in which each stage has its checkpoint, under its own name.
        signals: The ZooKeeper over which stages signal pressure. Default: the ledger's database.
        pressure: The thresholds for stages that have none of their own. Default: `HopSettings()`.

    Raises:
        OptionError: The name is not 1 to 100 such characters.
        LedgerError: The URL is not a ledger's.
    """

    def __init__(
        self,
        name: str,
        *,
        ledger: str,
        checkpoints: str | Path,
        signals: ZookeeperSettings | None = None,
        pressure: HopSettings | None = None,
    ) -> None:
        require_name("The name of a flow", name)
        self.name = name
        self.ledger = normalize_url(ledger)
        self.checkpoints = str(checkpoints)
        self.signals = signals
        self._pressure = pressure if pressure is not None else HopSettings()
        self._stages: dict[str, Stage] = {}
        self._links: dict[str, Link] = {}

    def __repr__(self) -> str:
        return f"Flow({self.name!r})"

    @property
    def graph(self) -> Graph:
        """Graph of the declarations so far."""
        return Graph(dict(self._stages), dict(self._links))

    def gate(self, stage: str) -> str:
        """The name of a stage's gate in the ledger."""
        return f"{self.name}.{stage}"

    def channel(self, name: str, channel: "KafkaChannel", *, schema: Schema | None = None) -> None:
        """Declare a channel.

        Args:
            name: What the stages call it.
            channel: What `headrace.flow.kafka` returned.
            schema: What the values on it hold. A stage that reads it and names a schema of its own
                is checked against this one; the values themselves are not looked at.
        """
        declared_at = caller_line()
        require_name("The name of a channel", name)
        self._refuse_another("Channel", name, self._links.get(name), declared_at)
        self._links[name] = Link(name, channel, schema, declared_at)

    def stage(
        self,
        name: str,
        *,
        reads: str,
        writes: str | Iterable[str] = (),
        derive: "Callable[[DataFrame], DataFrame] | None" = None,
        options: Mapping[str, object] | None = None,
        schema: Schema | None = None,
        pressure: HopSettings | None = None,
        **run: Unpack[RunOptions],
    ) -> Callable[[Handler], Handler]:
        """Declare a stage: the handler that it decorates is called with each batch.

        The handler returns a DataFrame with the columns ``value`` and, if wanted, ``key`` and
        ``headers``; if it writes several channels, one for each by name; if it writes none, None.
        The returned records are written once, however often a batch is run.

        Args:
            name: 1 to 100 letters, digits, ``.``, ``_`` or ``-``, and no other stage's; any other
                is an `OptionError`.
            reads: The channel that it reads.
            writes: The channel or channels that it writes; none for a sink.
            derive: Transforms the stream before it is cut into batches, such as an aggregation.
            options: Of the channel's source, such as ``backpressure.initialRate`` and the caps.
            schema: What the values that it reads hold, checked against the channel's.
            pressure: When it throttles others, and by how much it slows down. Default: the flow's.
            **run: ``interval`` (default: ``"1 second"``), the time that a batch should take;
                ``on_failure`` (``"stop"``), ``on_outage`` (``"hold"``) and ``backfill``
                (``"spare"``), as of `Gate.write`.
        """
        require_name("The name of a stage", name)
        declared_at = caller_line()
        written = (writes,) if isinstance(writes, str) else tuple(writes)
        _require_channels(name, declared_at, reads, written)
        self._refuse_another("Stage", name, self._stages.get(name), declared_at)

        def declare(handler: Handler) -> Handler:
            self._stages[name] = Stage(
                name,
                handler,
                reads,
                written,
                derive,
                {key: option_text(value) for key, value in (options or {}).items()},
                schema,
                pressure if pressure is not None else self._pressure,
                declared_at,
                **run,
            )
            return handler

        return declare

    def check(self) -> None:
        """Raise the first error that can be found before anything is opened, with its line."""
        check(self)

    def start(self, spark: "SparkSession", *, stages: Iterable[str] | None = None) -> "RunningFlow":
        """Start the flow in one Spark application, or only some of its stages.

        Everything is checked, and every channel reached, before the first query starts.

        Args:
            spark: The session.
            stages: Which stages; None for all. The others run elsewhere, with the same ledger and
                the same signals.

        Raises:
            OptionError: The flow is wrong, or has no stage of such a name.
            HeadraceError: A channel, the ledger or ZooKeeper cannot be used.
        """
        chosen = self._chosen(stages)
        self.check()
        from headrace.flow.running import start  # noqa: PLC0415  (a declaration needs no Spark)

        return start(self, spark, chosen)

    def _chosen(self, names: Iterable[str] | None) -> list[Stage]:
        if names is None:
            return list(self._stages.values())
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in self._stages:
                known = ", ".join(map(repr, self._stages)) or "none"
                raise OptionError(
                    f"Flow {self.name!r} has no stage {name!r}; its stages are {known}."
                )
        return [self._stages[name] for name in wanted]

    def _refuse_another(
        self, what: str, name: str, known: Stage | Link | None, declared_at: str
    ) -> None:
        if known is not None:
            raise OptionError(
                f"{what} {name!r} ({declared_at}) is declared a second time, after"
                f" {known.declared_at}; give it another name."
            )


def _require_channels(
    stage: str, declared_at: str, reads: object, writes: Iterable[object]
) -> None:
    """Refuse channels that are not named by texts; a stage reads one."""
    if not isinstance(reads, str):
        raise OptionError(
            f"Stage {stage!r} ({declared_at}) reads {reads!r}; it reads one channel, by its name,"
            " so declare a stage for each channel that is to be read."
        )
    for each in writes:
        if not isinstance(each, str):
            raise OptionError(
                f"Stage {stage!r} ({declared_at}) writes {each!r}; name its channels, such as"
                " writes='parsed' or writes=['good', 'bad']."
            )
