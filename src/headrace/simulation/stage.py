"""A gated query, as it is simulated."""

from dataclasses import dataclass, field

from headrace.control import EstimatorSettings, HopSettings
from headrace.control.validation import require_name
from headrace.errors import OptionError
from headrace.simulation.checks import require_number
from headrace.simulation.load import Load

MOST_PARTITIONS = 10_000
"""Of all channels of a world together."""


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """A gated query.

    Attributes:
        name: Its name.
        capacity_per_s: How many records it processes in a second, without what a batch costs.
        after: The stages whose output it reads; none for a source.
        load: What comes from outside, for a source; None for any other stage.
        interval_ms: Its trigger's interval.
        fixed_ms: What a batch costs whatever its size.
        record_bytes: The size of a record that it reads (bytes).
        makes: How many records it makes of each that it reads; every stage after it gets them all.
        partitions: Over how many partitions each channel that it reads is spread.
        backlog: The records that wait at the start, for a source.
        noise: By how much its speed differs from batch to batch: the standard deviation of the
            factor; 0 to 0.5.
        initial_rate_per_s: ``backpressure.initialRate``; None for the estimator's ``min_rate``.
        estimator: The estimator's settings.
        hop: When it presses the stages before it; and its step counts when it is pressed.

    Raises:
        OptionError: A number is out of its range, or a source has no load, or another stage one.
    """

    name: str
    capacity_per_s: float
    after: tuple[str, ...] = ()
    load: Load | None = None
    interval_ms: int = 1000
    fixed_ms: int = 50
    record_bytes: int = 200
    makes: float = 1.0
    partitions: int = 1
    backlog: int = 0
    noise: float = 0.0
    initial_rate_per_s: float | None = None
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)
    hop: HopSettings = field(default_factory=HopSettings)

    def __post_init__(self) -> None:
        require_name("A stage's name", self.name)
        of = f" of stage {self.name!r}"
        require_number("capacity_per_s" + of, self.capacity_per_s, "records/s", 0, above=True)
        require_number("interval_ms" + of, self.interval_ms, "ms", 1)
        require_number("fixed_ms" + of, self.fixed_ms, "ms", 0)
        require_number("record_bytes" + of, self.record_bytes, "bytes", 1)
        require_number("makes" + of, self.makes, "records", 0)
        require_number("partitions" + of, self.partitions, "partitions", 1, most=MOST_PARTITIONS)
        require_number("backlog" + of, self.backlog, "records", 0)
        require_number("noise" + of, self.noise, "(a standard deviation)", 0, most=0.5)
        if self.initial_rate_per_s is not None:
            name = "initial_rate_per_s" + of
            require_number(name, self.initial_rate_per_s, "records/s", 0, above=True)
        self.estimator.create(self.interval_ms)
        if self.after and (self.load is not None or self.backlog):
            raise OptionError(
                f"Stage {self.name!r} has a load or a backlog and reads {', '.join(self.after)};"
                " only a source has one, so leave it out, or leave out 'after'."
            )
        if not self.after and self.load is None:
            raise OptionError(
                f"Stage {self.name!r} reads no other stage and has no load; give it a load, or name"
                " in 'after' what it reads."
            )
