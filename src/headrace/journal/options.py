"""The options of ``format("headrace-journal")``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import OptionError
from headrace.source.bounds import Edge
from headrace.source.options import SHARED, SourceOptions, exactly_named, parse_source_options

FORMAT: Final = "headrace-journal"

_BOTH: Final = ("path", "lanes")
OPTIONS: Final = (*_BOTH, *SHARED)
"""Every option, as documented."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The options of one source, checked.

    Attributes:
        shared: those that every source has.
        streaming: whether of a stream, which reads later what it cannot read yet.
        path: the journal's folder, or its URL in an object store or HDFS.
        lanes: the lanes that are read; None for all there are, new ones too.
    """

    shared: SourceOptions
    streaming: bool
    path: str
    lanes: tuple[int, ...] | None


def parse_options(options: Mapping[str, str], *, streaming: bool) -> JournalOptions:
    """Check every option, each for itself and all against each other.

    Unlike Kafka's, a stream begins with the earliest record there is, for whoever sent it was told
    that it will be processed.

    Args:
        options: by name, in any case, as Spark hands them to a source.
        streaming: whether for a stream or for a bounded read.

    Raises:
        OptionError: an option is unknown, of the wrong type, out of range or contradicts another;
            names it, its value and what is allowed.
    """
    given = exactly_named(FORMAT, options, streaming=streaming, both=_BOTH)
    if not given.get("path", "").strip():
        raise OptionError(
            "Nothing says which journal to read; set the option path to its folder, or name it in"
            " load(...)."
        )
    return JournalOptions(
        shared=parse_source_options(given, streaming=streaming, stream_begins=Edge.EARLIEST),
        streaming=streaming,
        path=given["path"].strip(),
        lanes=_lanes(given),
    )


def _lanes(given: Mapping[str, str]) -> tuple[int, ...] | None:
    if "lanes" not in given:
        return None
    numbers = [each.strip() for each in given["lanes"].split(",")]
    if not all(each.isascii() and each.isdecimal() for each in numbers):
        raise OptionError(
            f"lanes is {given['lanes']!r}; it must be the numbers of lanes, such as 0,1."
        )
    return tuple(sorted(set(map(int, numbers))))
