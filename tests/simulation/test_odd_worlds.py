"""Both laws where a batch's time is no straight line with white noise: PID is the measure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from statistics import fmean, quantiles

import pytest

from headrace.gate.control.law import BatchProgress
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.rates import QueryRates

pytestmark = pytest.mark.nightly

INTERVAL_MS = 1000
BEST_PER_S = 20_000
BATCHES = 160
SEEDS = 12

Cost = Callable[[float, int], float]
"""The time of a batch (s), from its records as a part of the best a second, and its number."""


@dataclass(frozen=True)
class World:
    """A job on a backlog.

    Attributes:
        cost: Time of a batch without noise.
        noise: Standard deviation of the time, as a part of it.
        lasting: Correlation of the noise from batch to batch.
        best: Factors of the best rate, one for each seed in turn.
    """

    cost: Cost
    noise: float = 0.05
    lasting: float = 0.0
    best: tuple[float, ...] = (1.0,)


def neighbour(fixed_s: float) -> Cost:
    """Half the processor is taken for 15 batches of 40, and given back."""

    def cost(part: float, number: int) -> float:
        is_there = number >= 40 and (number - 40) % 40 < 15
        return (fixed_s + part) * (2 if is_there else 1)

    return cost


def limited_sink(least_s: float) -> Cost:
    return lambda part, _: max(least_s, part)


FACTORS = tuple(0.15 * 1.55**n for n in range(SEEDS))

WORLDS = {
    "flat 0.1": World(limited_sink(0.1), noise=0, best=FACTORS),
    "flat 0.25": World(limited_sink(0.25), noise=0, best=FACTORS),
    "flat 0.5": World(limited_sink(0.5), noise=0, best=FACTORS),
    "flat 0.25 with noise": World(limited_sink(0.25), best=FACTORS),
    "flat 0.5 with noise": World(limited_sink(0.5), best=FACTORS),
    "neighbour 0.1": World(neighbour(0.1)),
    "neighbour 0.3": World(neighbour(0.3)),
    "neighbour 0.4": World(neighbour(0.4)),
    "lasting noise 0.1": World(lambda part, _: 0.1 + part, noise=0.2, lasting=0.9),
    "lasting noise 0.3": World(lambda part, _: 0.3 + part, noise=0.2, lasting=0.9),
    "half as lasting": World(lambda part, _: 0.1 + part, noise=0.2, lasting=0.5),
    "superlinear": World(lambda part, _: 0.1 + part / 2 + part**2),
    "waves of tasks": World(lambda part, _: 0.1 + 0.2 * math.ceil(part / 0.2 - 1e-9)),
    "a cliff": World(lambda part, _: 0.2 + part + 2 * max(part - 0.6, 0)),
    "a leap": World(lambda part, _: 0.2 + part * (2 if part > 0.6 else 1)),
    "compaction": World(lambda part, number: 0.2 + part + (1.5 if number % 20 == 19 else 0)),
}


@dataclass(frozen=True)
class Figures:
    """Means over the seeds, of one law in one world."""

    per_s: float
    p95_s: float
    largest_s: float


def run(world: World, law: str, seed: int) -> tuple[float, float, float]:
    dice, rates = Random(seed), QueryRates()
    rates.add("gate", EstimatorSettings(law), INTERVAL_MS)
    best_per_s = BEST_PER_S * world.best[seed % len(world.best)]
    rate, start_ms, records, took, off = 100.0, 0, 0, list[int](), dice.gauss(0, world.noise)
    for number in range(BATCHES):
        count = int(rate)
        took.append(max(round(world.cost(count / best_per_s, number) * (1 + off) * 1000), 1))
        new = dice.gauss(0, world.noise * math.sqrt(1 - world.lasting**2))
        off = max(world.lasting * off + new, -0.8)
        progress = BatchProgress(start_ms, took[-1], count, 1)
        rate = rates.finished({"gate": progress})["gate"].rate_per_s or rate
        records += count
        start_ms = max(progress.end_ms, (start_ms // INTERVAL_MS + 1) * INTERVAL_MS)
    p95_ms = quantiles(took, n=20)[-1]
    return records * 1000 / start_ms / best_per_s, p95_ms / 1000, max(took) / 1000


@cache
def figures(name: str, law: str) -> Figures:
    found = [run(WORLDS[name], law, seed) for seed in range(SEEDS)]
    return Figures(*(fmean(each) for each in zip(*found, strict=True)))


@pytest.mark.parametrize("name", WORLDS)
def test_it_carries_what_pid_does_and_hardly_a_batch_is_longer(name: str) -> None:
    pid, learned = (figures(name, law) for law in ("pid", "learned"))
    assert learned.per_s > 0.98 * pid.per_s
    assert learned.p95_s < 1.04 * pid.p95_s


@pytest.mark.parametrize("name", [name for name in WORLDS if name.startswith("flat")])
def test_on_a_flat_cost_it_grows_carefully(name: str) -> None:
    """Eight times as large, a batch took 2.16 s at once, and one after it up to 48 s."""
    assert figures(name, "learned").largest_s < 1.6


@pytest.mark.parametrize("least_s", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("place", range(SEEDS))
def test_no_limit_of_a_sink_makes_the_batches_swing(least_s: float, place: int) -> None:
    world = World(limited_sink(least_s), noise=0, best=(FACTORS[place],))
    _, p95_s, largest_s = run(world, "learned", 0)
    assert p95_s < 1.05
    assert largest_s < 3.0, "three times what it should take, at most"
