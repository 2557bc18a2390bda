"""The orders of the demo: JSON as a shop would write it, each with a number of its own."""

import json
import random
from typing import Final

SCHEMA: Final = (
    "shop string, id long, time_ms long, customer string, region string,"
    " items array<struct<sku: string, quantity: int, price: double>>, total double"
)
"""The columns of an order, for ``from_json``."""

REGIONS: Final = ("north", "east", "south", "west", "overseas")

_SHELVES: Final = "ABCDEF"

PARTITION_WEIGHTS: Final = (30, 25, 20, 12, 8, 5)
"""How the orders spread over the topic's partitions: as unevenly as keys do."""


class OrderBook:
    """Writes orders: the same ones for the same seed and times.

    Args:
        shop: Stands in every order, to tell these from others in the same topic.
        seed: What the contents of the orders follow from.
        partitions: Of the topic; the first of them get most.
    """

    def __init__(self, shop: str, seed: int, partitions: int) -> None:
        self.shop = shop
        self._random = random.Random(seed)  # noqa: S311  (nothing secret)
        self._partitions = range(partitions)
        weights = PARTITION_WEIGHTS
        self._weights = [weights[place % len(weights)] for place in self._partitions]
        self.written = 0
        """How many there are; the next one has this number."""

    def write(self, time_ms: int) -> tuple[bytes, int]:
        """The next order and the partition it belongs to."""
        choose = self._random.randrange
        prices = [(1 + choose(4), (99 + choose(20_000)) / 100) for _ in range(1 + choose(3))]
        order = {
            "shop": self.shop,
            "id": self.written,
            "time_ms": time_ms,
            "customer": f"c-{choose(50_000):05}",
            "region": REGIONS[choose(len(REGIONS))],
            "items": [
                {"sku": f"{_SHELVES[choose(6)]}-{choose(10_000):04}", "quantity": n, "price": each}
                for n, each in prices
            ],
            "total": round(sum(n * each for n, each in prices), 2),
        }
        self.written += 1
        (partition,) = self._random.choices(self._partitions, self._weights)
        return json.dumps(order).encode(), partition
