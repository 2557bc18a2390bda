"""Values that are damaged, and the check that decoding them gives nothing that they do not say."""

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from headrace.decoding.formats import Decoder

VALUES: Final = 20
"""Damaged values in each example."""

MOST_S: Final = 2.0
"""Processor time for one example's values."""

_BYTES: Final = [bytes([byte]) for byte in (0, 1, 2, 3, 4, 0x0A, 0x12, 0x7F, 0x80, 0xFE, 0xFF)]
_PIECES: Final = [
    *_BYTES,
    b"\xff" * 9 + b"\x01",
    b"\xfe" + b"\xff" * 8 + b"\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 10 + b"\x00",
    b"\x80\xa8\xd6\xb9\x07",
    b"\x02" * 300,
    b"\xed\xa0\x80",
]


def damaged(values: Sequence[bytes], seed: int, pieces: Sequence[bytes] = ()) -> list[bytes]:
    """Make values of valid ones, each of which is changed in one to three places."""
    chance = random.Random(seed)
    return [
        _damaged(chance.choice(values), values, [*_PIECES, *pieces], chance) for _ in range(VALUES)
    ]


def _damaged(
    value: bytes, others: Sequence[bytes], pieces: Sequence[bytes], chance: random.Random
) -> bytes:
    for _ in range(chance.randint(1, 3)):
        first = chance.randint(0, len(value))
        end = min(len(value), first + chance.choice((0, 1, 1, 1, 2, 8)))
        match chance.randrange(6):
            case 0:
                new = chance.choice(pieces)
            case 1:
                new = bytes([chance.randrange(256)])
            case 2:
                new = b""
            case 3:
                new = value[first:end] * chance.choice((2, 2, 3, 400))
            case 4:
                new, end = chance.choice(others)[first:], len(value)
            case _:
                new = bytes(byte ^ 1 << chance.randrange(8) for byte in value[first:end])
        value = value[:first] + new + value[end:]
    return value


def batches(valid: st.SearchStrategy[bytes], *pieces: bytes) -> st.SearchStrategy[list[bytes]]:
    """Valid values, damaged ones, and any bytes."""
    return st.builds(
        lambda values, seed, others: [*values, *damaged(values, seed, pieces), *others],
        st.lists(valid, min_size=1, max_size=3),
        st.integers(0, 2**32),
        st.lists(st.binary(max_size=40), max_size=2),
    )


def check(
    decoder: Decoder,
    good: bytes,
    values: Sequence[bytes],
    says: Callable[[bytes], dict[str, Any] | None],
) -> None:
    """Decode values between two good ones, and compare what is accepted with another decoder's.

    Args:
        decoder: decodes.
        good: fits.
        values: may fit.
        says: returns the row of a value by the other decoder; None where that refuses it.
    """
    began_s = time.process_time()
    result = decoder.decode(pa.array([good, *values, good], pa.binary()))
    assert time.process_time() - began_s < MOST_S
    result.values.validate(full=True)
    rows = result.values.to_pylist()
    assert plain(rows[0]) == plain(rows[-1]) == plain(says(good))
    for number, value in enumerate(values, start=1):
        assert (rows[number] is None) == (number in result.reasons)
        if rows[number] is not None:
            other = says(value)
            assert other is None or plain(rows[number]) == plain(other), value


def plain(value: Any) -> str:
    """A value as text, in which NaN is itself and a map is its entries, by their keys."""
    match value:
        case dict():
            return f"[{', '.join(sorted(map(plain, value.items())))}]"
        case [(_, _), *_] if all(isinstance(entry, tuple) for entry in value):
            return f"[{', '.join(sorted(map(plain, value)))}]"
        case list() | tuple():
            return f"[{', '.join(map(plain, value))}]"
        case datetime():  # of whichever class its zone is
            return value.isoformat()
        case _:
            return repr(value)
