"""A flow: stages and channels, declared in Python and checked before any query starts."""

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
    """Directed acyclic graph of stages and the channels between them.

    Each stage is a gated streaming query with its own checkpoint. A stage reads one channel, and
    any number of stages may write a channel. A stage that cannot keep up throttles the stages that
    write its channel. A throttled stage throttles its own upstream stages only if its queue grows
    too.

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
        ledger: The URL of the ledger that all stages use.
        checkpoints: The folder of the checkpoints, with a subfolder for each stage.
        signals: The ZooKeeper over which stages send signals. Default: the ledger's database.
        pressure: The thresholds for stages without their own. Default: `HopSettings()`.

    Raises:
        OptionError: The name has other characters or another length.
        LedgerError: The URL is not the URL of a ledger.
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
        """Graph of the stages and channels declared so far."""
        return Graph(dict(self._stages), dict(self._links))

    def gate(self, stage: str) -> str:
        """Return the name of a stage's gate in the ledger."""
        return f"{self.name}.{stage}"

    def channel(self, name: str, channel: "KafkaChannel", *, schema: Schema | None = None) -> None:
        """Declare a channel between stages.

        Args:
            name: The channel's name in this flow.
            channel: The channel, from `headrace.flow.kafka`.
            schema: The schema of the channel's values. If a stage that reads the channel declares a
                schema, the two schemas must be equal. The values themselves are not checked.
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
        """Return a decorator that declares a stage with a function as its handler.

        The handler is called with each batch, and returns the records to write, as a DataFrame with
        the column ``value`` and optionally ``key`` and ``headers``. If the stage writes several
        channels, the handler returns a dictionary of DataFrames by channel. If the stage writes no
        channel, the handler returns None. Readers of a channel get each batch's records once,
        however often the batch is run.

        Args:
            name: A unique name of 1 to 100 letters, digits, ``.``, ``_`` or ``-``. Any other name
                is an `OptionError`.
            reads: The name of the channel to read.
            writes: The names of the channels to write; none for a sink.
            derive: A function that transforms the stream before it is split into batches, for
                example an aggregation.
            options: Options of the channel's source, such as ``backpressure.initialRate`` and the
                maximum batch size.
            schema: The schema of the values that the stage reads, which must be the channel's
                schema.
            pressure: The thresholds at which this stage throttles its upstream stages, and the
                slowdown. Default: the flow's settings.
            **run: ``interval`` (default: ``"1 second"``), the target duration of a batch;
                ``on_failure`` (``"stop"``), ``on_outage`` (``"hold"``) and ``backfill``
                (``"spare"``), as in `Gate.write`.
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
        """Raise the first error in the declarations, with the line of code. Contact no server."""
        check(self)

    def start(self, spark: "SparkSession", *, stages: Iterable[str] | None = None) -> "RunningFlow":
        """Start all or some stages of the flow in one Spark application.

        All declarations are checked, and all channels are contacted, before the first query starts.

        Args:
            spark: The session.
            stages: The names of the stages to start. Default: all stages. Stages that are not
                started here run in other applications, with the same ledger and the same signals.

        Raises:
            OptionError: A declaration is wrong, or a stage does not exist.
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
                declared = ", ".join(map(repr, self._stages)) or "none"
                raise OptionError(
                    f"Flow {self.name!r} has no stage {name!r}; its stages are {declared}."
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
    """Raise OptionError unless ``reads`` and each item of ``writes`` is a channel's name."""
    if not isinstance(reads, str):
        raise OptionError(
            f"Stage {stage!r} ({declared_at}) reads {reads!r}; a stage reads one channel, given by"
            " its name, so declare one stage for each channel to read."
        )
    for channel in writes:
        if not isinstance(channel, str):
            raise OptionError(
                f"Stage {stage!r} ({declared_at}) writes {channel!r}; give the names of channels,"
                " such as writes='parsed' or writes=['good', 'bad']."
            )
