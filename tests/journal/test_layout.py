import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.journal.layout import (
    MAX_OFFSET,
    checked_journal_name,
    checked_lane,
    file_name,
    lane_of,
    parsed,
)


@given(st.integers(0, MAX_OFFSET), st.sampled_from(["segment", "lost"]))
def test_a_file_s_name_says_its_offset_and_kind(first: int, kind: str) -> None:
    name = file_name(first, kind)
    assert parsed(name) == (first, kind)


@given(st.lists(st.integers(0, MAX_OFFSET)))
def test_names_in_order_are_offsets_in_order(offsets: list[int]) -> None:
    names = sorted(file_name(offset, "segment") for offset in offsets)
    assert names == [file_name(offset, "segment") for offset in sorted(offsets)]


@pytest.mark.parametrize(
    "name",
    [
        "5.segment",
        "00000000000000000005.segment ",
        "00000000000000000005.segment.corrupt",
        "99999999999999999999.segment",
        "\N{ARABIC-INDIC DIGIT ONE}" * 20 + ".segment",
        "lock",
        "journal.json",
        "../00000000000000000005.segment",
    ],
)
def test_a_foreign_name_says_nothing(name: str) -> None:
    assert parsed(name) is None


def test_a_name_that_is_a_topic_s_is_a_journal_s() -> None:
    for name in ("orders", "a.b-c_D9", "...", "a" * 249):
        assert checked_journal_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "a\n", "ü", "a" * 250])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="journal's name"):
        checked_journal_name(name)


@pytest.mark.parametrize("lane", [-1, 100_000, "0", "../1", 1.0, True, None])
def test_a_lane_is_a_number_from_0_to_99999(lane: int) -> None:
    assert checked_lane(0) == 0
    assert checked_lane(99_999) == 99_999
    with pytest.raises(OptionError, match="whole number from 0 to 99999"):
        checked_lane(lane)


@pytest.mark.parametrize(
    "folder", ["-1", "00", "01", "100000", "a", "", "1 ", "\N{ARABIC-INDIC DIGIT ONE}", ".."]
)
def test_a_folder_that_is_no_lane_s_number_is_none(folder: str) -> None:
    assert lane_of("0") == 0
    assert lane_of("99999") == 99_999
    assert lane_of(folder) is None
