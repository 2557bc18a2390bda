"""Rendering of values by templates: everything is text, and every template can be read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from headrace.operate.dashboard.live import LedgerLink
from headrace.operate.dashboard.overview_page import layers_of
from headrace.operate.dashboard.pages import bar, bytes_shown, environment, lines_of, path, visible
from headrace.operate.dashboard.security import RefusedError, Sessions
from headrace.operate.status.stages import StageSnapshot, busy_share
from headrace.testing import ManualClock

TOKEN = "x" * 32


@given(st.text())
def test_nothing_that_is_not_to_be_seen_is_left(text: str) -> None:
    shown = visible(text)
    assert all(each.isprintable() or each.isspace() for each in shown)
    assert not set("\x00\x1b\u202e\u2066\n\r") & set(shown)


@given(st.text())
def test_a_text_of_several_lines_has_no_markup(text: str) -> None:
    assert "<" not in lines_of(text).replace(str(escape("<")), "")


@given(st.text(min_size=1))
def test_a_path_is_plain_ascii_whatever_is_in_a_name(name: str) -> None:
    made = path("gate", name)
    assert made.isascii() and made.isprintable() and made.count("/") == 2
    assert not set("?#\"'<> ") & set(made)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(data: bytes) -> None:
    forms = bytes_shown(data)
    assert {"Hex", "Base64"} <= forms.keys()


def test_a_deep_json_is_text() -> None:
    assert "JSON" not in bytes_shown(b"[" * 100_000)
    assert bytes_shown(b'{"a": 1}')["JSON"] == '{\n  "a": 1\n}'
    assert bytes_shown(None) == {}


def test_every_template_can_be_read() -> None:
    templates = environment()
    names = templates.list_templates(extensions=["html"])
    assert len(names) > 20
    for name in names:
        templates.get_template(name)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_longer_of_two_batches_has_the_longer_bar(one: float, other: float) -> None:
    widths = [
        float(re.findall(r'class="fill" width="([\d.]+)"', bar(each * 1_000, 1_000))[0])
        for each in sorted((one, other))
    ]
    assert 0 <= widths[0] <= widths[1] <= 100


def test_a_batch_of_eleven_intervals_does_not_look_like_one_of_one() -> None:
    assert 'width="50.0"' in bar(2_000, 2_000) and "<small></small>" in bar(2_000, 2_000)
    assert 'width="95.5"' in bar(22_000, 2_000) and "<small>11&times;</small>" in bar(22_000, 2_000)
    assert bar(None, 2_000) == bar(2_000, 0) == ""


def test_the_ledger_in_the_footer_is_readable_and_has_no_secret() -> None:
    link = LedgerLink("postgresql://app:hunter2@/orders?host=/var/run&sslpassword=hunter3")
    assert "host=/var/run" in link.name and "hunter" not in link.name


def test_a_session_ends_and_wrong_tokens_are_counted() -> None:
    clock = ManualClock()
    sessions = Sessions(TOKEN, clock.monotonic)
    cookie = sessions.sign_in(TOKEN, "  Ada \n Lovelace ", "192.0.2.1")
    found = sessions.of(cookie)
    assert found is not None and found.who == "Ada Lovelace"
    for _ in range(10):
        with pytest.raises(RefusedError, match="wrong"):
            sessions.sign_in("no", "Ada", "192.0.2.1")
    with pytest.raises(RefusedError, match="too many"):
        sessions.sign_in(TOKEN, "Ada", "192.0.2.1")
    sessions.sign_in(TOKEN, "Ada", "192.0.2.2")
    clock.sleep(61)
    sessions.sign_in(TOKEN, "Ada", "192.0.2.1")
    clock.sleep(13 * 3_600)
    assert sessions.of(cookie) is None


def test_busy_is_the_part_of_the_time_in_which_a_batch_ran() -> None:
    assert busy_share([], 0, 1_000) == 0
    assert busy_share([(0, 500), (600, 800)], 0, 1_000) == 0.7
    assert busy_share([(0, 500), (250, 750)], 0, 1_000) == 0.75
    assert busy_share([(-900, None)], 0, 1_000) == 1


def stage(name: str, *upstream: str) -> StageSnapshot:
    return StageSnapshot("shop", name, "free", None, 0, None, None, None, None, upstream, None, 0)


def test_each_stage_is_below_all_that_are_before_it() -> None:
    stages = [stage("store", "enrich", "clean"), stage("enrich", "clean"), stage("clean")]
    layers = [[each.stage for each in layer] for layer in layers_of(stages)]
    assert layers == [["clean"], ["enrich"], ["store"]]
    assert len(layers_of([stage("a", "b"), stage("b", "a"), stage("c", "gone")])) > 0
