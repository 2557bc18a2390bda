"""Scenarios that several tests simulate."""

from random import Random

from bench.simulation import (
    Disturbance,
    Load,
    Policy,
    Result,
    Scenario,
    SimulatedStage,
    Slow,
    run,
)

from headrace.gate.control.pressure import HopSettings

NAMES = ("one", "two", "three", "four", "five")
LOAD_PER_S = 100_000
CAPACITY_PER_S = 120_000
INTERVAL_MS = 500
FIXED_MS = 50
SLOW_FROM_S, SLOW_UNTIL_S, END_S = 60, 360, 600
SLOW = Slow("four", SLOW_FROM_S, SLOW_UNTIL_S, factor=0.25)


def chain(
    *disturbances: Disturbance,
    names: tuple[str, ...] = NAMES,
    load: Load | float = LOAD_PER_S,
    capacity_per_s: float = CAPACITY_PER_S,
    duration_s: float = END_S,
    noise: float = 0.0,
    hop: HopSettings | None = None,
    signal_ms: int = 100,
) -> Scenario:
    """Stages in a chain, of 200-byte records, all alike."""
    load = load if isinstance(load, Load) else Load(((0, load),))
    return Scenario(
        tuple(
            SimulatedStage(
                name,
                capacity_per_s,
                after=(names[place - 1],) if place else (),
                load=None if place else load,
                interval_ms=INTERVAL_MS,
                fixed_ms=FIXED_MS,
                noise=noise,
                hop=hop or HopSettings(),
            )
            for place, name in enumerate(names)
        ),
        duration_s,
        disturbances,
        signal_ms=signal_ms,
    )


def ran(scenario: Scenario, policy: Policy = Policy.HOP_BY_HOP, seed: int = 0) -> Result:
    return run(scenario, policy, Random(seed))
