"""Records a second into a journal through one receiver process, beside a bare program."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.figures import AtLeast, Figure
from bench.pairs import Spread, in_turn, ratios
from bench.processes import LINES, POSTS, Listening, bare_receiver, receiver, send
from bench.scale import Scale
from bench.stage import Stage

BARE: Final = "bare"
HEADRACE: Final = "headrace"
PROMISED: Final = AtLeast(300_000)

REQUEST_RECORDS: Final = 10_000
CONNECTIONS: Final = 8
WARM_UP_RECORDS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Flood:
    """One way of sending as much as is taken.

    Attributes:
        name: Name of the figure.
        kind: `LINES` or `POSTS`.
        settings: The text of the receiver's settings file.
        target: Target of the figure.
    """

    name: str
    kind: str
    settings: str = ""
    target: AtLeast | None = PROMISED

    def send(self, port: int, records: int) -> dict[str, float]:
        """Send so many; the seconds until all were stored, and those of the sender's CPU."""
        how: dict[str, Any] = {"port": port, "records": records}
        if self.kind == POSTS:
            how |= {"each": REQUEST_RECORDS, "connections": CONNECTIONS}
        found: dict[str, float] = send(f"{self.kind}.all_at_once", **how)
        return found


FLOODS: Final = (
    Flood("lines over TCP", LINES),
    Flood("NDJSON over HTTP", POSTS),
    Flood("NDJSON over HTTP, not checked", POSTS, "[http]\ncheck_json = false\n"),
)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """As much as a sender of one connection, or of a few, can get rid of."""
    for flood in FLOODS:
        shares: list[float] = []
        rates = in_turn(
            {
                BARE: partial(_bare_rate, stage, scale, flood),
                HEADRACE: partial(_rate, stage, scale, flood, shares),
            },
            scale.pairs,
            scale.warm_ups,
        )
        yield Figure(
            flood.name,
            "rows/s",
            Spread.of(rates[HEADRACE]),
            Spread.of(rates[BARE]),
            ratios(rates[HEADRACE], to=rates[BARE]),
            flood.target,
            {"rates_per_s": rates},
            absolute=True,
        )
        yield Figure(f"{flood.name}: its sender", "cores", Spread.of(shares[-scale.pairs :]))


def _rate(stage: Stage, scale: Scale, flood: Flood, shares: list[float]) -> float:
    journal = stage.fresh_folder("journal")
    with receiver(journal, flood.kind, settings=flood.settings) as listening:
        found = _flooded(listening, scale, flood)
    shutil.rmtree(journal)
    shares.append(found["cpu_seconds"] / found["seconds"])
    return scale.receiver_records / found["seconds"]


def _bare_rate(stage: Stage, scale: Scale, flood: Flood) -> float:
    file = stage.fresh_folder("bare") / "file"
    with bare_receiver(file, flood.kind) as listening:
        found = _flooded(listening, scale, flood)
    file.unlink()
    return scale.receiver_records / found["seconds"]


def _flooded(listening: Listening, scale: Scale, flood: Flood) -> dict[str, float]:
    flood.send(listening.port, min(WARM_UP_RECORDS, scale.receiver_records))
    return flood.send(listening.port, scale.receiver_records)
