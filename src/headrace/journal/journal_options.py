"""The options of ``format("headrace-journal")``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.gate import (
    SHARED,
    Edge,
    SourceOptions,
    exactly_named,
    parse_source_options,
    replay_bounds,
)

FORMAT: Final = "headrace-journal"

_BOTH: Final = ("path", "lanes")
OPTIONS: Final = (*_BOTH, *SHARED)
"""Names of all options of ``format("headrace-journal")``."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Checked options of one journal source, for a stream or for a bounded read.

    If ``lanes`` is None, the source reads all lanes, including lanes that are created later.
    """

    shared: SourceOptions
    streaming: bool
    path: str
    lanes: tuple[int, ...] | None


def parse_options(options: Mapping[str, str], *, streaming: bool) -> JournalOptions:
    """Parse and check the options of a stream, or of a bounded read.

    By default, a stream starts at the earliest record, unlike a Kafka stream, because senders have
    received acknowledgements for all records. Raise OptionError if an option is unknown, of the
    wrong type, out of range, or contradicts another. The error names the option, its value and the
    allowed values.
    """
    raw = exactly_named(FORMAT, options, streaming=streaming, both=_BOTH)
    if not raw.get("path", "").strip():
        raise OptionError(
            "The option path is missing or empty; set it to the journal's path or URL, or pass"
            " that to load(...)."
        )
    return JournalOptions(
        shared=parse_source_options(raw, streaming=streaming, stream_begins=Edge.EARLIEST),
        streaming=streaming,
        path=raw["path"].strip(),
        lanes=_lanes(raw),
    )


def _lanes(raw: Mapping[str, str]) -> tuple[int, ...] | None:
    if "lanes" not in raw:
        return None
    numbers = [number.strip() for number in raw["lanes"].split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise OptionError(
            f"lanes is {raw['lanes']!r}; it must be lane numbers separated by commas, such as 0,1."
        )
    return tuple(sorted(set(map(int, numbers))))


# Options of a stream that its bounded reads keep: the journal's address and the split into tasks.
_KEPT: Final = frozenset({"path", "includeheaders", "minpartitions", "maxrecordsperpartition"})


def replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the options of a bounded read of exactly ``ranges``, from a stream's ``options``."""
    kept = {name: value for name, value in options.items() if name.lower() in _KEPT}
    lanes = sorted({r.partition for r in ranges})
    return {**kept, "lanes": ",".join(map(str, lanes)), **replay_bounds(ranges)}
