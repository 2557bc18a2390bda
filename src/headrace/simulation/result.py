"""What a simulation has found: a series of every quantity for each stage."""

from dataclasses import dataclass, field

from headrace.simulation.world import Policy, World


@dataclass(slots=True)
class Series:
    """What one stage did, at every sample; all lists are as long as `Result.times_s`.

    Attributes:
        came_per_s: Records that came since the sample before, a second.
        admitted_per_s: Records that batches were given since then, a second.
        processed_per_s: Records of batches that ended since then, a second.
        waiting_bytes: What waits to be given to a batch.
        delay_s: How long the oldest record that waits has waited.
        rate_per_s: The rate in force: the least of estimator, bound and caps; None for none.
        rate_limit_per_s: The bound under pressure from the stages after it; None while it is free.
        level: The level of that bound; 0 while it is free.
    """

    came_per_s: list[float] = field(default_factory=list)
    admitted_per_s: list[float] = field(default_factory=list)
    processed_per_s: list[float] = field(default_factory=list)
    waiting_bytes: list[int] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    rate_per_s: list[float | None] = field(default_factory=list)
    rate_limit_per_s: list[float | None] = field(default_factory=list)
    level: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Move:
    """The bound of a stage has changed.

    Attributes:
        time_ms: When.
        stage: The stage that is held.
        throttled_by: The stage that presses it; None when it has become free.
        level: The level; 0 when it has become free.
        rate_limit_per_s: The bound (records/s); None when it has become free.
    """

    time_ms: int
    stage: str
    throttled_by: str | None
    level: float
    rate_limit_per_s: float | None


@dataclass(slots=True)
class Result:
    """All that was seen in one run of a world under one policy.

    Attributes:
        world: What was simulated.
        policy: Who slowed down.
        times_s: When the samples were taken (s).
        series: By stage.
        moves: Every change of a bound, in their order.
        signals: How many were sent, by stage that sent them; those that were lost too.
        largest_bytes: The largest queue there ever was, by stage, between samples too.
    """

    world: World
    policy: Policy
    times_s: list[float] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)
    largest_bytes: dict[str, int] = field(default_factory=dict)
