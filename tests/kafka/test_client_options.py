"""The table of the Java consumer's options: complete, right about librdkafka, documented."""

import itertools
import re
from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.kafka.client_config import client_config
from headrace.kafka.client_options import JAVA_OPTIONS
from headrace.kafka.client_values import TEXT, Combined, Fate, NoEffect, Refused, Translated

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "kafka-client-options.md"

# "name default" of ConsumerConfig.configDef() in kafka-clients 4.1.0, and the one that only 3.9.2
# has; "-" stands for no default.
JAVA_DEFAULTS = dict(
    line.split(" ", 1) for line in (HERE / "java_consumer_options.txt").read_text().splitlines()
)
SERVERS = {"bootstrap.servers": "kafka:9092"}


def test_every_option_of_the_java_consumer_has_its_fate_and_nothing_else_has() -> None:
    assert sorted(JAVA_OPTIONS) == sorted(JAVA_DEFAULTS)


@pytest.mark.parametrize("name", sorted(set(JAVA_DEFAULTS) - {"bootstrap.servers"}))
def test_javas_default_is_accepted_wherever_the_option_is(name: str) -> None:
    default = JAVA_DEFAULTS[name]
    if isinstance(JAVA_OPTIONS[name], Refused):
        with pytest.raises(OptionError, match=rf"^kafka\.{re.escape(name)}=.* cannot be used: "):
            client_config({**SERVERS, name: default})
    elif default != "-":
        client_config({**SERVERS, name: "" if default == "''" else default})


@pytest.mark.parametrize(
    "name", sorted(n for n, fate in JAVA_OPTIONS.items() if isinstance(fate, Translated | NoEffect))
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_allowed(name: str) -> None:
    fate = JAVA_OPTIONS[name]
    assert isinstance(fate, Translated | NoEffect)
    if fate.kind.allowed == "a text":
        client_config({**SERVERS, name: "wrong"})
        return
    with pytest.raises(OptionError) as refused:
        client_config({**SERVERS, name: "wrong"})
    assert str(refused.value).startswith(f"kafka.{name}=")
    assert str(refused.value).endswith(f"is not valid; it must be {fate.kind.allowed}.")


def test_the_least_and_the_most_that_the_table_allows_are_taken_and_nothing_beyond() -> None:
    for name, fate in JAVA_OPTIONS.items():
        limits = re.match(
            r"a whole number from (\d+) to (\d+)", getattr(fate, "kind", TEXT).allowed
        )
        if not isinstance(fate, Translated) or limits is None:
            continue
        for limit, beyond in ((int(limits[1]), -2), (int(limits[2]), int(limits[2]) + 1)):
            assert client_config({**SERVERS, name: str(limit)})[fate.to] == limit
            with pytest.raises(OptionError, match=f"kafka.{name}="):
                client_config({**SERVERS, name: str(beyond)})


def row(name: str, fate: Fate) -> str:
    """A line of the page's table."""
    match fate:
        case Translated(to, _, note):
            text = f"becomes `{to}`" + (f" ({note})" if note else "")
        case Combined((), note):
            text = f"checked: {note}"
        case Combined(to, note):
            text = "becomes " + ", ".join(f"`{n}`" for n in to) + (f" ({note})" if note else "")
        case NoEffect(_, because):
            text = f"accepted, no effect: {because}"
        case Refused(instead):
            text = f"refused: {instead}"
    return f"| `kafka.{name}` | {text} |"


def test_the_page_says_of_every_option_what_the_table_says() -> None:
    lines = PAGE.read_text().splitlines()
    rows = list(itertools.takewhile(bool, lines[lines.index("| --- | --- |") + 1 :]))
    assert rows == [row(name, fate) for name, fate in sorted(JAVA_OPTIONS.items())]
