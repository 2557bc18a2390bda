"""What the gates of this process have read, so that what is written is written by its own gate."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from headrace.errors import OptionError
from headrace.gate.plans import sources_of
from headrace.source.connector import Connector


@dataclass(frozen=True, slots=True)
class GateRead:
    """What a reader of a gate has loaded, and how.

    Attributes:
        name: tells it from everything else that was ever loaded.
        gate: the gate's name.
        ledger_url: its ledger's, in full.
        df: what was loaded.
        connector: of the source.
        options: as they were given.
    """

    name: str
    gate: str
    ledger_url: str
    df: DataFrame
    connector: Connector
    options: Mapping[str, str]


_lock: Final = threading.Lock()
_reads: Final[dict[str, GateRead]] = {}


def remember(read: GateRead) -> None:
    """Keep what was loaded, for whoever writes it."""
    with _lock:
        _reads[read.name] = read


def read_of(df: DataFrame, gate: str, ledger_url: str) -> GateRead:
    """What a stream reads through a gate; once, as the gate stands before one source.

    Args:
        df: the stream.
        gate: the gate's name.
        ledger_url: its ledger's, in full.

    Raises:
        OptionError: it reads nothing through the gate, or more than one source.
    """
    sources = sources_of(df)
    own = [source for source in sources if source.gate == gate]
    if len(own) > 1:
        raise OptionError(
            f"What the gate {gate!r} is to write reads through it {len(own)} times, which are"
            f" {len(own)} sources of one query, and a gate stands before one; read each with a gate"
            " of its own."
        )
    with _lock:
        read = _reads.get(own[0].read or "") if own else None
    if read is None:
        others = sorted({source.gate for source in sources if source.gate not in {None, gate}})
        through = f"through the gate {others[0]!r}" if others else "with no Gate.read"
        raise OptionError(
            f"What the gate {gate!r} is to write was read {through}; write what"
            f" {gate!r} itself has read, or what is derived from it."
        )
    if read.ledger_url != ledger_url:
        raise OptionError(
            f"What the gate {gate!r} is to write was read with another ledger than this gate's; use"
            " one Gate to read and to write."
        )
    return read
