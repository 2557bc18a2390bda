"""The options that every source has: its gate, its limits, where to begin, how tasks are made."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, overload

from headrace.control import BatchLimits, EstimatorSettings, PartitionLimit
from headrace.errors import OptionError
from headrace.source import values
from headrace.source.bounds import Bound, Edge, ending_bound, starting_bound

STREAM_ONLY: Final = (
    "headrace.gate",
    "headrace.ledger",
    "headrace.interval",
    "headrace.read",
    "backpressure.enabled",
    "backpressure.initialRate",
    "backpressure.rateEstimator",
    "backpressure.pid.proportional",
    "backpressure.pid.integral",
    "backpressure.pid.derived",
    "backpressure.pid.minRate",
    "maxRatePerPartition",
    "minRatePerPartition",
    "maxBytesPerTrigger",
)
"""Of a stream, and of no bounded read."""
# The native connector takes these for a bounded read too, and does nothing with them.
STREAM_NATIVE: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
TOPIC_IDS: Final = "headrace.topicIds"
BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", TOPIC_IDS)
"""Of a bounded read, and of no stream."""
BOTH: Final = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
)
SHARED: Final = (*BOTH, *STREAM_NATIVE, *BATCH_ONLY, *STREAM_ONLY)
"""Every option that every source has."""

MIN_RATE_PER_S: Final = 100.0
"""What ``backpressure.pid.minRate`` is unless it is set."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What every source is told, checked.

    Attributes:
        starting: where to begin.
        ending: where a bounded read ends.
        timestamp_strategy: what to do where no record is at or after a starting time.
        fail_on_data_loss: whether offsets that are gone stop the query.
        include_headers: whether there is a column ``headers``.
        min_partitions: at least so many tasks; None for as many as suit.
        max_records_per_partition: at most so many records in a task; None for no limit.
        gate: the gate's name; None where the source is used without one.
        ledger: the URL of the gate's ledger; never shown, for it may hold a password.
        read: names what `Gate.read` has loaded, so that its query and its handler know each other.
        interval_ms: the batch interval (ms).
        estimator: which estimator learns the gate's rate, and its gains.
        limits: what bounds a batch besides the rate.
        min_offsets_per_trigger: fewer are not worth a batch; None for no such limit.
        max_trigger_delay_ms: how long too few may wait (ms).
        topic_ids: the ids of topics as they were planned, by name: none of another id is read.
    """

    starting: Bound
    ending: Bound
    timestamp_strategy: Literal["error", "latest"]
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    gate: str | None
    ledger: str | None = field(repr=False)
    read: str | None
    interval_ms: int
    estimator: EstimatorSettings
    limits: BatchLimits
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    topic_ids: Mapping[str, str]

    @property
    def no_limits(self) -> BatchLimits:
        """For a trigger that takes everything there is."""
        return BatchLimits(seconds_per_batch=self.interval_ms / 1000, initial_rate=None)


def exactly_named(
    source: str,
    options: Mapping[str, str],
    *,
    streaming: bool,
    both: Collection[str] = (),
    stream_only: Collection[str] = (),
) -> dict[str, str]:
    """The options by their exact names; none is unknown or out of place.

    Args:
        source: the format's name, for errors.
        options: by name, in any case.
        streaming: whether for a stream or for a bounded read.
        both: what this source has beyond what every source has, for streams and bounded reads.
        stream_only: the same, for streams only.

    Raises:
        OptionError: one is unknown, or is for the other kind of read.
    """
    exact_name = {name.lower(): name for name in (*both, *stream_only, *SHARED)}
    misplaced = BATCH_ONLY if streaming else (*stream_only, *STREAM_ONLY)
    given = {}
    for name, value in options.items():
        exact = exact_name.get(name.lower())
        if exact is None:
            raise unknown_option(source, name, exact_name)
        if exact in misplaced:
            kind = "a bounded read (spark.read)" if streaming else "a stream (spark.readStream)"
            raise OptionError(f"The option {exact} is for {kind}; leave it out here.")
        given[exact] = value
    return given


def unknown_option(what: str, name: str, exact_name: Mapping[str, str]) -> OptionError:
    """The error that there is no such option.

    Args:
        what: that has none.
        name: as it was written.
        exact_name: those that there are, by their names in lower case.
    """
    near = difflib.get_close_matches(name.lower(), exact_name, n=1)
    hint = f"did you mean {exact_name[near[0]]}?" if near else "see docs/options.md."
    return OptionError(f"There is no option {name} for {what}; {hint}")


def parse_source_options(
    given: Mapping[str, str], *, streaming: bool, stream_begins: Edge
) -> SourceOptions:
    """Check the options that every source has, each for itself and all against each other.

    Args:
        given: by exact name; others are left to the source.
        streaming: whether for a stream or for a bounded read.
        stream_begins: where a stream begins unless it is told otherwise.

    Raises:
        OptionError: an option is of the wrong type, out of range or contradicts another; names it,
            its value and what is allowed.
    """
    minimum = whole(given, "minOffsetsPerTrigger")
    limits = _limits(given)
    _refuse_contradictions(given, minimum, limits.max_records)
    return SourceOptions(
        starting=starting_bound(
            given, stream_begins if streaming else Edge.EARLIEST, streaming=streaming
        ),
        ending=ending_bound(given),
        timestamp_strategy=_timestamp_strategy(given),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        include_headers=_flag(given, "includeHeaders", default=False),
        min_partitions=whole(given, "minPartitions"),
        max_records_per_partition=whole(given, "maxRecordsPerPartition"),
        gate=given.get("headrace.gate"),
        ledger=given.get("headrace.ledger"),
        read=given.get("headrace.read"),
        interval_ms=_interval_ms(given),
        estimator=_estimator(given),
        limits=limits,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=values.duration_ms(
            "maxTriggerDelay", given.get("maxTriggerDelay", "15m")
        ),
        topic_ids=values.text_by_topic(TOPIC_IDS, given.get(TOPIC_IDS, "{}")),
    )


def _refuse_contradictions(
    given: Mapping[str, str], minimum: int | None, maximum: int | None
) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(
            f"minOffsetsPerTrigger is {minimum}, more than the {maximum} of maxOffsetsPerTrigger;"
            " lower the first or raise the second."
        )
    if "headrace.gate" in given:
        values.gate_name("headrace.gate", given["headrace.gate"])
        if "headrace.ledger" not in given:
            raise OptionError(
                f"headrace.gate is {given['headrace.gate']!r} without a headrace.ledger; name the"
                " ledger's database, such as sqlite:///headrace.db."
            )
        return
    for name in given:
        if name.startswith("backpressure.") or name == "headrace.ledger":
            raise OptionError(
                f"The option {name} needs a gate, for the rate is kept under its name; set"
                " headrace.gate too."
            )


def _limits(given: Mapping[str, str]) -> BatchLimits:
    learns = "headrace.gate" in given and _flag(given, "backpressure.enabled", default=True)
    least = _min_rate(given)
    initial = _rate(given, "backpressure.initialRate", default=least)
    if "headrace.gate" in given and initial < least:
        raise OptionError(
            f"backpressure.initialRate is {initial:g} records/s, below the {least:g} of"
            " backpressure.pid.minRate; raise the first or lower the second."
        )
    cap, caps = values.number_by_partition(
        "maxRatePerPartition",
        given.get("maxRatePerPartition", "0"),
        lambda option, text: values.number(option, text, above_zero=False),
        0.0,
    )
    floor, floors = values.number_by_partition(
        "minRatePerPartition",
        given.get("minRatePerPartition", "1"),
        lambda option, text: values.whole_number(option, text, at_least=1),
        1,
    )
    return BatchLimits(
        seconds_per_batch=_interval_ms(given) / 1000,
        initial_rate=initial if learns else None,
        max_rate_per_partition=PartitionLimit(cap, caps),
        min_per_partition=PartitionLimit(floor, floors),
        max_records=whole(given, "maxOffsetsPerTrigger"),
        max_bytes=whole(given, "maxBytesPerTrigger"),
    )


def _estimator(given: Mapping[str, str]) -> EstimatorSettings:
    def gain(term: str, default: float) -> float:
        name = f"backpressure.pid.{term}"
        return values.number(name, given.get(name, str(default)), above_zero=False)

    settings = EstimatorSettings(
        name=given.get("backpressure.rateEstimator", "pid"),
        proportional=gain("proportional", 1.0),
        integral=gain("integral", 0.2),
        derivative=gain("derived", 0.0),
        min_rate=_min_rate(given),
    )
    settings.create(_interval_ms(given))  # refuses what the estimator would
    return settings


def _min_rate(given: Mapping[str, str]) -> float:
    return _rate(given, "backpressure.pid.minRate", default=MIN_RATE_PER_S)


def _interval_ms(given: Mapping[str, str]) -> int:
    return values.interval_ms("headrace.interval", given.get("headrace.interval", "1 second"))


def _timestamp_strategy(given: Mapping[str, str]) -> Literal["error", "latest"]:
    name = "startingOffsetsByTimestampStrategy"
    match given.get(name, "error").strip().lower():
        case "error":
            return "error"
        case "latest":
            return "latest"
        case other:
            raise OptionError(f"{name} is {other!r}; it must be error or latest.")


def _rate(given: Mapping[str, str], name: str, *, default: float) -> float:
    return values.number(name, given[name], above_zero=True) if name in given else default


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    return values.boolean(name, given[name]) if name in given else default


@overload
def whole(given: Mapping[str, str], name: str) -> int | None: ...


@overload
def whole(given: Mapping[str, str], name: str, *, at_least: int, default: int) -> int: ...


def whole(
    given: Mapping[str, str], name: str, *, at_least: int = 1, default: int | None = None
) -> int | None:
    """An option that is a whole number; the default where it is not given.

    Raises:
        OptionError: it is not a whole number, or too small.
    """
    return values.whole_number(name, given[name], at_least=at_least) if name in given else default
