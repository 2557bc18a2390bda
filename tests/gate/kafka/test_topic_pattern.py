"""``subscribePattern`` finds the topics that Java finds, or is refused by name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.errors import OptionError
from headrace.gate.kafka.topic_pattern import topic_pattern

NAMES = [
    *("orders", "orders-dlq", "Orders", "a.b", "axb", "a-b", "a_b", "ordersorders", "x", "y", "z"),
    *("abc", "abz", "b1", "1", "12", "A1", "-", ".x", "_", "aa", "aaa", "AB", "ab", "a1b2", "q.e"),
]
CLASSES = [
    *("[a-z&&[^x]]", "[a-c[x-z]]", "[a-z&&[def][xy]]", "[^a-d[x]]", "[^a-y&&b-z]", "[[a]]"),
    *(r"[\w&&[^_]]", r"[a-z&&[^b-y]&&[^z]]", r"[\p{Lower}1]", r"[\P{Lower}]", r"[^\p{Alnum}]"),
    *("[]a]", "[^]a]", "[a-]", "[-a]", r"[\Qa-z\E]", r"[&a]", r"[a&b]", r"[a^]", r"[\-.]"),
    *(r"[a-z&&[^\x00-\x7f]]", r"[\w&&\D]", r"[a-f&&d-z]", "[a-z&&[aeiou]]", "[.[-]]"),
]
PATTERNS = [
    *(r"^\p{Lower}+$", r"\p{Upper}", r"\P{Alpha}", r"\pL", r"\p{IsAlphabetic}\p{Nd}", r"\p{Punct}"),
    *(r"\Qa.b\E", r"\Qa.b", r"^\Qa.\Eb", "(?<n>a)", r"(?<n>a)\k<n>", r"(a)\1", r"s\z", r"s\Z"),
    *(
        "a++b",
        "a*+a",
        "(?>a+)a",
        "[ab]{1,2}+b",
        "(?i)ORDERS",
        "(?i:o)rders",
        r"\borders\b",
        "^a.b$",
    ),
    *(
        r"a\.b",
        r"a\-b",
        r"\w+\d",
        "(?<!a)b",
        "(?=o)o",
        "orders|x",
        "(?:a|b)1",
        r"^\D+$",
        "",
        r"\x61",
    ),
    *(f"^{items}+$" for items in CLASSES),
    *CLASSES,
]
REFUSED = {
    r"a\Rb": r"\R",
    r"\h": r"\h",
    r"\v": r"\v",
    r"\X": r"\X",
    r"\Ga": r"\G",
    r"\x{61}": r"\x{61}",
    r"\0141": r"\0141",
    r"\cA": r"\c",
    r"\e": r"\e",
    r"(a)\12": r"\12",
    r"\b{g}": r"\b{g}",
    r"\N{DIGIT ONE}": r"\N",
    r"\p{IsGreek}": r"\p{IsGreek}",
    r"\p{script=Greek}": r"\p{script",
    "(?x)a b": "(?x)",
    "(?ix:a b)": "(?ix:",
    "[a&&]": "[a&&]",
    "[&&a]": "[&&a]",
    "[a&&&b]": "&&&",
    "[a-[b]]": "-[ in a class",
    r"(?i)\p{Lower}": r"\p{Lower} together with (?i)",
    "(?i)[a-z&&[^x]]": "[a-z&&[^x]] together with (?i)",
    r"[\k<n>]": r"\k",
}


@pytest.mark.integration
def test_every_pattern_finds_what_java_finds(spark: SparkSession) -> None:
    names = spark.createDataFrame([(name,) for name in NAMES], "name string").coalesce(1)
    found = names.select(
        "name", *(names.name.rlike(pattern).alias(f"p{at}") for at, pattern in enumerate(PATTERNS))
    )
    for row in found.collect():
        java = {pattern: row[f"p{at}"] for at, pattern in enumerate(PATTERNS)}
        ours = {pattern: topic_pattern(pattern).search(row["name"]) is not None for pattern in java}
        assert ours == java, row["name"]


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_has_no_translation_is_named(pattern: str) -> None:
    with pytest.raises(OptionError) as refused:
        topic_pattern(pattern)
    message = str(refused.value)
    assert f", and {REFUSED[pattern]}" in message
    assert message.endswith("write it in another way.")


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "[", "[a&&[b]", "a\\", "*", "a(?i)b", r"\y", "[z-a]"]
)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match="subscribePattern is "):
        topic_pattern(pattern)


TEXTS = st.text("ab[]^&-\\QEpzZk<>(){}?+*.0123iw", max_size=12)


@given(TEXTS)
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        assert isinstance(topic_pattern(text), re.Pattern)
    except OptionError as error:
        assert str(error).startswith("subscribePattern is ")
