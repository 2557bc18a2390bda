"""Which topics and partitions a source reads."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.control.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.source.values import partitions_by_topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics or partitions; one of the three is given.

    Attributes:
        option: the option that says so, for errors.
        topics: named topics.
        pattern: the topics in whose name it is found.
        partitions: named partitions.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """Read ``subscribe``, ``subscribePattern`` or ``assign``.

    Raises:
        OptionError: none or more than one of them is given, or it is not of its form.
    """
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        who = f"{' and '.join(chosen)} say" if chosen else "Nothing says"
        raise OptionError(
            f"{who} which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign."
        )
    option, text = chosen[0], given[chosen[0]]
    match option:
        case "subscribe":
            topics = tuple(dict.fromkeys(name for t in text.split(",") if (name := t.strip())))
            if not topics:
                raise OptionError(f"subscribe is {text!r}; name one topic, or several with commas.")
            return Subscription(option, topics=topics)
        case "subscribePattern":
            return Subscription(option, pattern=_pattern(text))
        case _:
            return Subscription(option, partitions=tuple(partitions_by_topic(option, text)))


def _pattern(text: str) -> re.Pattern[str]:
    if not text.strip():
        raise OptionError("subscribePattern is empty; write a regular expression of topic names.")
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(
            f"subscribePattern is {text!r}; it must be a regular expression, and this is not:"
            f" {error}."
        ) from error
