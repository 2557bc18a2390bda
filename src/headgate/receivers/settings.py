"""What can be set of an intake, checked when it is set."""

import math
from dataclasses import dataclass

from headgate.errors import OptionError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """How an intake gathers records, and how much it holds.

    Attributes:
        block_interval_ms: The longest that a record waits for its block to be written; above 0,
            200 unless told otherwise. Too large, and acknowledgements come late; too small, and
            the journal has many small blocks, each with its own sync.
        block_bytes: The size at which a block is written at once (bytes in memory); 1 or more,
            8 MiB unless told otherwise. Too large, and tasks that read a block each are uneven; too
            small, and the sync of each block costs throughput.
        buffer_bytes: The most that records take from when they are handed in until they are
            durable (bytes in memory), waiting ones included; at least ``block_bytes``, 64 MiB
            unless told otherwise. Too large, and the receiver takes memory that its machine does
            not have; too small, and senders wait while a block is written.
        remembered_ids: How many message ids are remembered, so that a record that is sent again is
            not stored again; 0 or more, 100 000 unless told otherwise. Each takes about 250 bytes,
            within the memory of the process but outside of ``buffer_bytes``. Too small, and an
            id is forgotten before its sender has sent again.

    Raises:
        OptionError: A value is out of its range.
    """

    block_interval_ms: float = 200
    block_bytes: int = 8 * MIB
    buffer_bytes: int = 64 * MIB
    remembered_ids: int = 100_000

    def __post_init__(self) -> None:
        require_above_zero("block_interval_ms", self.block_interval_ms, "ms")
        require_at_least("block_bytes", self.block_bytes, 1)
        require_at_least("remembered_ids", self.remembered_ids, 0)
        if self.buffer_bytes < self.block_bytes:
            raise OptionError(
                f"buffer_bytes is {self.buffer_bytes}, less than one block of {self.block_bytes}"
                " bytes; raise it, or lower block_bytes."
            )


def require_above_zero(name: str, value: float, unit: str) -> None:
    """Refuse what is not a finite number above 0.

    Raises:
        OptionError: It is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} is {value:g} {unit}; it must be a finite number above 0.")


def require_at_least(name: str, value: int, least: int) -> None:
    """Refuse a number that is too small.

    Raises:
        OptionError: It is.
    """
    if value < least:
        raise OptionError(f"{name} is {value}; it must be {least} or more.")
