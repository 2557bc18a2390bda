"""Options that every source has: gate, limits, start and end of a read, and size of tasks."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, overload

from headrace.core import options as text_of
from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.hold import OutageSettings
from headrace.gate.control.interval import AUTO, SHORTEST_INTERVAL_MS, IntervalLaw
from headrace.gate.control.laws import DEFAULT_LAW, LAW_OPTIONS, EstimatorSettings, law_options
from headrace.gate.control.limits import BatchLimits, PartitionLimit
from headrace.gate.source.read_bounds import Edge, ReadBound, ending_bound, starting_bound

if TYPE_CHECKING:
    from headrace.gate.source.decoded_values import DecodedValues


class NewCheckpoint(StrEnum):
    """What a query with a new checkpoint does if its gate has a history in the ledger."""

    CONTINUE = "continue"
    """Continue from the ledger's position; an interrupted batch runs first, under its own key."""
    RESTART = "restart"
    """Begin at ``startingOffsets``; processed records may be processed again."""
    REFUSE = "refuse"
    """Raise `OptionError`, so that the query does not start."""


NEW_CHECKPOINT: Final = "headrace.newCheckpoint"
FAIL_ON_MISFIT: Final = "failOnMisfit"
STREAM_ONLY: Final = (
    "headrace.gate",
    "headrace.ledger",
    "headrace.interval",
    "headrace.maxDelay",
    "headrace.workRatio",
    "headrace.read",
    NEW_CHECKPOINT,
    "backpressure.enabled",
    "backpressure.initialRate",
    "backpressure.rateEstimator",
    *LAW_OPTIONS,
    "backpressure.pid.minRate",
    "maxRatePerPartition",
    "minRatePerPartition",
    "maxBytesPerTrigger",
    "outage.retry",
    "outage.maxRetry",
    "outage.maxHold",
    FAIL_ON_MISFIT,
)
"""Options that only a stream may have."""
# The native connector accepts and ignores these options in a bounded read too.
STREAM_NATIVE: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
TOPIC_IDS: Final = "headrace.topicIds"
RANGES: Final = "headrace.ranges"
BATCH_ONLY: Final = (
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    TOPIC_IDS,
    RANGES,
)
"""Options that only a bounded read may have."""
BOTH: Final = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "decode",
    "mode",
    "headrace.engine",
)
SHARED: Final = (*BOTH, *STREAM_NATIVE, *BATCH_ONLY, *STREAM_ONLY)
"""All options that every source has, for streams and for bounded reads."""

MIN_RATE_PER_S: Final = 100.0
"""Default of ``backpressure.pid.minRate`` (records/s)."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked values of the options that every source has.

    Attributes:
        timestamp_strategy: What to do if no record is at or after a starting time: raise an error,
            or start at the latest offset.
        fail_on_data_loss: Whether missing offsets stop the query.
        min_partitions: Approximate number of tasks; None to choose it from the number of records.
        max_records_per_partition: Maximum number of records in a task; None for no limit.
        ledger: URL of the gate's ledger; never shown, because it may contain a password.
        read: Id of the `Gate.read` call; it links the query to the gate's handler.
        min_offsets_per_trigger: Minimum number of offsets in a batch; None for no minimum.
        max_trigger_delay_ms: Longest delay of a batch for ``min_offsets_per_trigger`` (ms).
        interval_ms: Interval of the gate (ms). For ``auto``: its first length, before a batch's
            fixed cost is known.
        new_checkpoint: What a new checkpoint does if the gate has a history.
        topic_ids: Ids of the topics at the time of the plan, by name. A topic that now has another
            id is not read.
        ranges: Exact ranges of a bounded read; empty for all offsets between its bounds.
    """

    starting: ReadBound
    ending: ReadBound
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
    ranges: Sequence[OffsetRange]
    new_checkpoint: NewCheckpoint = NewCheckpoint.CONTINUE

    @property
    def no_limits(self) -> BatchLimits:
        """Limits for a trigger that reads all records (``once``): only the interval is set."""
        return BatchLimits(seconds_per_batch=self.interval_ms / 1000, initial_rate=None)


def exactly_named(
    source: str,
    options: Mapping[str, str],
    *,
    streaming: bool,
    both: Collection[str] = (),
    stream_only: Collection[str] = (),
) -> dict[str, str]:
    """Return a source's options with their exact names, from case-insensitive names.

    ``both`` and ``stream_only`` are the names of this source's own options, for streams and bounded
    reads, and for streams alone. OptionError is raised for an unknown option, for a stream's option
    in a bounded read, and for a bounded read's option in a stream.
    """
    exact_name = {name.lower(): name for name in (*both, *stream_only, *SHARED)}
    misplaced = BATCH_ONLY if streaming else (*stream_only, *STREAM_ONLY)
    raw = {}
    for name, value in options.items():
        exact = exact_name.get(name.lower())
        if exact is None:
            raise unknown_option(source, name, exact_name)
        if exact in misplaced:
            kind = "a bounded read (spark.read)" if streaming else "a stream (spark.readStream)"
            raise OptionError(f"The option {exact} is for {kind}; leave it out here.")
        raw[exact] = value
    return raw


def unknown_option(what: str, name: str, exact_name: Mapping[str, str]) -> OptionError:
    """Return the error for an unknown option. Its message suggests the closest known name."""
    near = difflib.get_close_matches(name.lower(), exact_name, n=1)
    hint = f"did you mean {exact_name[near[0]]}?" if near else "see docs/options.md."
    return OptionError(f"There is no option {name} for {what}; {hint}")


def parse_source_options(
    raw: Mapping[str, str], *, streaming: bool, stream_begins: Edge
) -> SourceOptions:
    """Parse the options that every source has. Raise `OptionError` for a wrong option.

    ``raw`` has the options by exact name. ``stream_begins`` is the default start of a stream.
    """
    minimum = whole(raw, "minOffsetsPerTrigger")
    limits = _limits(raw)
    outage_settings(raw)
    fails_on_misfit(raw)
    decoded_values(raw)
    _refuse_contradictions(raw, minimum, limits.max_records)
    return SourceOptions(
        starting=starting_bound(
            raw, stream_begins if streaming else Edge.EARLIEST, streaming=streaming
        ),
        ending=ending_bound(raw),
        timestamp_strategy=_timestamp_strategy(raw),
        fail_on_data_loss=_flag(raw, "failOnDataLoss", default=True),
        include_headers=_flag(raw, "includeHeaders", default=False),
        min_partitions=whole(raw, "minPartitions"),
        max_records_per_partition=whole(raw, "maxRecordsPerPartition"),
        gate=raw.get("headrace.gate"),
        ledger=raw.get("headrace.ledger"),
        read=raw.get("headrace.read"),
        interval_ms=_interval_ms(raw),
        estimator=_estimator(raw),
        limits=limits,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=text_of.duration_ms(
            "maxTriggerDelay", raw.get("maxTriggerDelay", "15m")
        ),
        topic_ids=text_of.text_by_topic(TOPIC_IDS, raw.get(TOPIC_IDS, "{}")),
        ranges=text_of.disjoint_ranges(RANGES, raw.get(RANGES, "[]")),
        new_checkpoint=_new_checkpoint(raw),
    )


def decoded_values(options: Mapping[str, str]) -> "DecodedValues | None":
    """Return the decoding of a source's values from its options; None if values stay raw bytes.

    The names of the options are case-insensitive. OptionError is raised for a wrong or
    contradictory option, and SetupError if the format's decoder is not installed.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    if not {"decode", "mode", "headrace.engine"} & by_name.keys():
        return None
    # Import here: most sources decode nothing, and the import is slow.
    from headrace.gate.source.decoded_values import DecodedValues  # noqa: PLC0415

    return DecodedValues.of(by_name)


def _new_checkpoint(raw: Mapping[str, str]) -> NewCheckpoint:
    text = raw.get(NEW_CHECKPOINT, NewCheckpoint.CONTINUE)
    if text.lower() not in set(NewCheckpoint):
        raise OptionError(
            f"The option {NEW_CHECKPOINT} is {text!r}; it must be one of"
            f" {', '.join(NewCheckpoint)}."
        )
    return NewCheckpoint(text.lower())


def _refuse_contradictions(
    raw: Mapping[str, str], minimum: int | None, maximum: int | None
) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(
            f"minOffsetsPerTrigger is {minimum}, more than the {maximum} of maxOffsetsPerTrigger;"
            " lower minOffsetsPerTrigger or raise maxOffsetsPerTrigger."
        )
    if "headrace.gate" in raw:
        text_of.gate_name("headrace.gate", raw["headrace.gate"])
        if "headrace.ledger" not in raw:
            raise OptionError(
                f"headrace.gate is {raw['headrace.gate']!r} without a headrace.ledger; name the"
                " ledger's database, such as sqlite:///headrace.db."
            )
        return
    for name in raw:
        is_gates = name in {"headrace.ledger", FAIL_ON_MISFIT}
        if is_gates or name.startswith(("backpressure.", "outage.")):
            raise OptionError(
                f"The option {name} needs a gate, because it uses the gate's rates and batches in"
                " the ledger; set headrace.gate too."
            )


def _limits(raw: Mapping[str, str]) -> BatchLimits:
    learns = "headrace.gate" in raw and _flag(raw, "backpressure.enabled", default=True)
    least = _min_rate(raw)
    # The first batch is limited too: by default to the smallest rate that can be learnt from. Later
    # starts continue with the rate in the ledger.
    initial = _rate(raw, "backpressure.initialRate", default=least)
    if "headrace.gate" in raw and initial < least:
        raise OptionError(
            f"backpressure.initialRate is {initial:g} records/s, below the {least:g} of"
            " backpressure.pid.minRate; raise backpressure.initialRate or lower"
            " backpressure.pid.minRate."
        )
    cap, caps = text_of.number_by_partition(
        "maxRatePerPartition",
        raw.get("maxRatePerPartition", "0"),
        lambda option, text: text_of.number(option, text, above_zero=False),
        0.0,
    )
    floor, floors = text_of.number_by_partition(
        "minRatePerPartition",
        raw.get("minRatePerPartition", "1"),
        lambda option, text: text_of.whole_number(option, text, at_least=1),
        1,
    )
    auto = interval_law(raw)
    limits = BatchLimits(
        # Use the shortest possible interval, so that contradictory limits are refused now.
        seconds_per_batch=(_interval_ms(raw) if auto is None else SHORTEST_INTERVAL_MS) / 1000,
        initial_rate=initial if learns else None,
        max_rate_per_partition=PartitionLimit(cap, caps),
        min_per_partition=PartitionLimit(floor, floors),
        max_records=whole(raw, "maxOffsetsPerTrigger"),
        max_bytes=whole(raw, "maxBytesPerTrigger"),
    )
    return replace(limits, seconds_per_batch=_interval_ms(raw) / 1000)


def _estimator(raw: Mapping[str, str]) -> EstimatorSettings:
    law = raw.get("backpressure.rateEstimator", DEFAULT_LAW)
    settings = EstimatorSettings(
        law, law_options(law, raw), min_rate=_min_rate(raw), auto=interval_law(raw)
    )
    settings.start(_interval_ms(raw))  # Raises for options that the law refuses.
    return settings


def _min_rate(raw: Mapping[str, str]) -> float:
    return _rate(raw, "backpressure.pid.minRate", default=MIN_RATE_PER_S)


def interval_law(raw: Mapping[str, str]) -> IntervalLaw | None:
    """Return the limits of an ``auto`` interval; None if the interval is fixed.

    OptionError is raised for a limit that is out of its range, or that is set for a fixed interval.
    """
    if raw.get("headrace.interval", "").strip().lower() != AUTO:
        for name in ("headrace.maxDelay", "headrace.workRatio"):
            if name in raw:
                raise OptionError(
                    f"{name} is {raw[name]!r}, but it has an effect only if headrace.interval is"
                    f" {AUTO} (here: {raw.get('headrace.interval', '1 second')!r}); set"
                    f" headrace.interval to {AUTO}, or leave {name} out."
                )
        return None
    law = IntervalLaw()
    if "headrace.maxDelay" in raw:
        longest_ms = text_of.interval_ms("headrace.maxDelay", raw["headrace.maxDelay"])
        law = replace(law, max_delay_ms=longest_ms)
    if "headrace.workRatio" in raw:
        ratio = text_of.number("headrace.workRatio", raw["headrace.workRatio"], above_zero=True)
        law = replace(law, work_ratio=ratio)
    return law


def fails_on_misfit(options: Mapping[str, str]) -> bool:
    """Return the value of ``failOnMisfit``: whether a schema that fits no record ends the query.

    The names of the options are case-insensitive. OptionError is raised for a value other than true
    or false.
    """
    raw = {name.lower(): value for name, value in options.items()}
    return text_of.boolean(FAIL_ON_MISFIT, raw.get(FAIL_ON_MISFIT.lower(), "true"))


def outage_settings(options: Mapping[str, str]) -> OutageSettings:
    """Return the settings of a gate's wait for an unreachable sink, from a stream's options.

    The names of the options are case-insensitive. OptionError is raised for a malformed time, or
    for times that contradict each other.
    """
    raw, settings = {name.lower(): value for name, value in options.items()}, OutageSettings()

    def time_ms(name: str) -> int | None:
        text = raw.get(name.lower())
        return None if text is None else text_of.interval_ms(name, text)

    retry_ms = time_ms("outage.retry") or settings.retry_ms
    return replace(
        settings,
        retry_ms=retry_ms,
        max_retry_ms=time_ms("outage.maxRetry") or max(settings.max_retry_ms, retry_ms),
        max_hold_ms=time_ms("outage.maxHold"),
    )


def _interval_ms(raw: Mapping[str, str]) -> int:
    if (auto := interval_law(raw)) is not None:
        return auto.first_ms
    return text_of.interval_ms("headrace.interval", raw.get("headrace.interval", "1 second"))


def _timestamp_strategy(raw: Mapping[str, str]) -> Literal["error", "latest"]:
    name = "startingOffsetsByTimestampStrategy"
    match raw.get(name, "error").strip().lower():
        case "error":
            return "error"
        case "latest":
            return "latest"
        case text:
            raise OptionError(f"{name} is {text!r}; it must be error or latest.")


def _rate(raw: Mapping[str, str], name: str, *, default: float) -> float:
    return text_of.number(name, raw[name], above_zero=True) if name in raw else default


def _flag(raw: Mapping[str, str], name: str, *, default: bool) -> bool:
    return text_of.boolean(name, raw[name]) if name in raw else default


@overload
def whole(raw: Mapping[str, str], name: str) -> int | None: ...


@overload
def whole(raw: Mapping[str, str], name: str, *, at_least: int, default: int) -> int: ...


def whole(
    raw: Mapping[str, str], name: str, *, at_least: int = 1, default: int | None = None
) -> int | None:
    """Return the value of an option that is a whole number, or the default if it is not set.

    OptionError is raised if the value is not a whole number, or is too small.
    """
    return text_of.whole_number(name, raw[name], at_least=at_least) if name in raw else default


LEDGERS: Final = frozenset({"headrace.ledger", "headrace.channel"})
"""Names, in lower case, of the options whose value is the URL of a ledger."""


def revealed(options: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Replace placeholders in Spark's options by the session's secrets. Return all options.

    Spark shows options in plans, its web UI and its event log. So Spark receives only a placeholder
    for each secret, and a ledger's URL without its password. Spark's Python processes receive the
    secrets with the class of the source.

    OptionError is raised if the URL of a ledger contains a password, because Spark would show it.
    """
    return {
        name: _ledger(name, value, secrets)
        if name.lower() in LEDGERS
        else secrets.get(value, value)
        for name, value in options.items()
    }


def _ledger(option: str, url: str, secrets: Mapping[str, str]) -> str:
    # Import here: most sources have no ledger, and the import is slow.
    from headrace.gate.ledger.connection import normalize_url, without_secrets  # noqa: PLC0415

    try:
        public = without_secrets(url)
        holds_a_secret = public != normalize_url(url)
    except LedgerError:
        return url  # Opening the ledger will raise with the reason.
    if holds_a_secret:
        raise OptionError(
            f"The option {option} has a password in its URL, which Spark would show in its plans;"
            " give the whole URL to headrace.register(spark, ledger=...) and leave the password out"
            " here, or keep it where PostgreSQL's client looks for it (PGPASSFILE, PGPASSWORD)."
        )
    return secrets.get(public, url)
