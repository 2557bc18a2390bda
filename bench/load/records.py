"""The records that senders send: 200 bytes of JSON each, no two of a chunk alike."""

import json
import random
from typing import Final

RECORD_BYTES: Final = 200
_SEED: Final = 20


def chunk(records: int) -> bytes:
    r"""So many lines, each ended by ``\n``."""
    source = random.Random(_SEED)
    return b"".join(_record(source) + b"\n" for _ in range(records))


def _record(source: random.Random) -> bytes:
    values = {
        "sensor": f"{source.getrandbits(64):016x}",
        "site": f"site-{source.randrange(200)}",
        "measured_at": f"2026-01-{source.randrange(1, 29):02}T12:{source.randrange(60):02}:00.000Z",
        "temperature": round(source.uniform(-20, 60), 2),
        "humidity": round(source.uniform(10, 90), 2),
        "counts": [source.randrange(1_000) for _ in range(3)],
        "note": "",
    }
    left = RECORD_BYTES - len(json.dumps(values))
    values["note"] = f"{source.getrandbits(4 * left):0{left}x}"
    return json.dumps(values).encode()
