"""JAAS configurations, read as Java's StreamTokenizer and Kafka's JaasConfig read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.kafka.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

# A lone surrogate is no text that could be an option.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def quoted(text: str, quote: str = '"') -> str:
    """A text as one writes it between Java's quotes."""
    escapes = {**_ESCAPES, quote: "\\" + quote}
    return quote + "".join(escapes.get(c, c) for c in text) + quote


@given(TEXTS, TEXTS, st.sampled_from("\"'"))
def test_any_name_and_password_come_back_as_they_were_quoted(
    username: str, password: str, quote: str
) -> None:
    text = f"{PLAIN} required username={quoted(username, quote)} password={quoted(password)};"
    login = parse_jaas(text)
    assert login.module == "PlainLoginModule"
    assert login.options == {"username": username, "password": password}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"a\\"b"', 'a"b'),
        ("'a\\'b'", "a'b"),
        ('"\\101\\60"', "A0"),
        ('"\\400"', " 0"),  # an octal number ends before it exceeds a byte
        ('"\\t\\n\\q"', "\t\nq"),
        ('"//no comment"', "//no comment"),
        ("a-b_c$d.e1", "a-b_c$d.e1"),
        ("é", "é"),
    ],
)
def test_a_value_is_read_as_java_reads_it(written: str, meant: str) -> None:
    assert parse_jaas(f"M required k={written};").options == {"k": meant}


@pytest.mark.parametrize(
    "text",
    [
        f"{PLAIN} required k=v;",
        f"\n {PLAIN}\n  REQUIRED\n  k = 'v' ;\n",
        f"/* who */ {PLAIN} optional // how\n k=v; // end",
        f"kafkashaded.{PLAIN} requisite k=v;",
        "PlainLoginModule sufficient k=v;",
    ],
)
def test_space_comments_flags_and_packages_do_not_matter(text: str) -> None:
    login = parse_jaas(text)
    assert (login.module, login.options) == ("PlainLoginModule", {"k": "v"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "login module"),
        ("hunter2", "login module"),
        (f"{PLAIN} username=hunter2;", "login module"),
        ("= required password=hunter2;", "login module"),
        (f"{PLAIN} required password=hunter2", "no ;"),
        (f"{PLAIN} required password hunter2;", 'name="value"'),
        (f"{PLAIN} required password=;", 'name="value"'),
        (f"{PLAIN} required =hunter2;", 'name="value"'),
        (f"{PLAIN} required password==hunter2;", 'name="value"'),
        (f'{PLAIN} required password="hunter2;', "open quote"),
        (f'{PLAIN} required password="hunter2\n";', "open quote"),
        (f"{PLAIN} required password=hunter2!;", "in quotes"),
        (f"{PLAIN} required password=2hunter2;", "in quotes"),
        (f"{PLAIN} required; {PLAIN} required password=hunter2;", "more than one"),
    ],
)
def test_what_is_malformed_is_refused_without_showing_it(text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what) as refused:
        parse_jaas(text)
    assert "kafka.sasl.jaas.config" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_and_never_shown(text: str) -> None:
    try:
        shown = repr(parse_jaas(f"M required password=hunter2{text}hunter2;"))
    except OptionError as error:
        shown = str(error)
    assert "hunter2" not in shown
