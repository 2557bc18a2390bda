import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.journal.names import (
    MAX_OFFSET,
    block_firsts,
    checked_journal_name,
    checked_lane,
    file_name,
    is_temporary,
    lane_of,
    parsed,
    temporary_name,
)


@given(st.integers(0, MAX_OFFSET), st.sampled_from(["block", "lost", "start"]))
def test_a_file_s_name_says_its_offset_and_kind(first: int, kind: str) -> None:
    name = file_name(first, kind)
    assert parsed(name) == (first, kind)
    assert is_temporary(temporary_name(name))
    assert parsed(temporary_name(name)) is None
    assert not is_temporary(name)


@given(st.lists(st.integers(0, MAX_OFFSET)))
def test_names_in_order_are_offsets_in_order(offsets: list[int]) -> None:
    names = sorted(file_name(offset, "block") for offset in offsets)
    assert names == [file_name(offset, "block") for offset in sorted(offsets)]


@pytest.mark.parametrize(
    "name",
    [
        "5.block",
        "00000000000000000005.block ",
        "00000000000000000005.block.corrupt",
        "99999999999999999999.block",
        "\N{ARABIC-INDIC DIGIT ONE}" * 20 + ".block",
        "lock",
        "journal.json",
        "../00000000000000000005.block",
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


@given(
    st.lists(
        st.one_of(
            st.integers(0, 2**64).map(lambda first: file_name(first, "block")),
            st.integers(0, 30).map(lambda first: file_name(first, "lost")),
            st.text("0123456789.block/:x\u0663", min_size=24, max_size=27),
            st.text("0123456789x/:\u0663", min_size=20, max_size=20).map(lambda t: f"{t}.block"),
            st.sampled_from(["lock", "00000000000000000005.block\n"]),
        )
    )
)
def test_many_names_say_what_each_says(names: list[str]) -> None:
    blocks, others = block_firsts(names)
    each = [found for name in names if (found := parsed(name)) is not None]
    assert sorted(blocks.tolist()) == sorted(first for first, kind in each if kind == "block")
    rest = [found for name in others if (found := parsed(name)) is not None]
    assert rest == [found for found in each if found[1] != "block"]
