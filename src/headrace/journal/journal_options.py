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
"""Every option, as documented."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The options of one source, checked.

    A ``streaming`` source retries records later that it cannot read yet. Without ``lanes`` it reads
    all there are, new ones too.
    """

    shared: SourceOptions
    streaming: bool
    path: str
    lanes: tuple[int, ...] | None


def parse_options(options: Mapping[str, str], *, streaming: bool) -> JournalOptions:
    """Check every option by itself and all against each other.

    Unlike Kafka's, a stream begins with the earliest record there is, for its sender has an
    acknowledgement.

    Raises:
        OptionError: an option is unknown, of the wrong type, out of range or contradicts another;
            names it, its value and what is allowed.
    """
    raw = exactly_named(FORMAT, options, streaming=streaming, both=_BOTH)
    if not raw.get("path", "").strip():
        raise OptionError(
            "Nothing says which journal to read; set the option path to its folder, or name it in"
            " load(...)."
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
    numbers = [each.strip() for each in raw["lanes"].split(",")]
    if not all(each.isascii() and each.isdecimal() for each in numbers):
        raise OptionError(
            f"lanes is {raw['lanes']!r}; it must be the numbers of lanes, such as 0,1."
        )
    return tuple(sorted(set(map(int, numbers))))


# Options of a stream for the journal's address and for the split into tasks.
_KEPT: Final = frozenset({"path", "includeheaders", "minpartitions", "maxrecordsperpartition"})


def replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the options of a bounded read of exactly these ranges of lanes."""
    kept = {name: value for name, value in options.items() if name.lower() in _KEPT}
    lanes = sorted({r.partition for r in ranges})
    return {**kept, "lanes": ",".join(map(str, lanes)), **replay_bounds(ranges)}
