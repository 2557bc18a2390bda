"""Which gates the overview shows, by its address."""

from urllib.parse import parse_qsl, urlsplit

from hypothesis import given
from hypothesis import strategies as st
from tests.operate.cli.histories import NOW_MS, with_lags

from headrace.operate.dashboard.overview_page import COLUMNS_CSS, Choice
from headrace.operate.status.moment import take_snapshot
from headrace.operate.status.snapshot import GATE_COLUMNS

BEHIND = take_snapshot(with_lags(9_000, 9_500, 10_000), NOW_MS)
"""The gate ``orders``, which falls behind."""

TEXT = st.text(max_size=100)


@given(st.sampled_from(["urgency", "lag"]), TEXT, TEXT, TEXT)
def test_an_address_that_is_sent_chooses_the_same(
    sort: str, wanted: str, state: str, need: str
) -> None:
    choice = Choice(sort, wanted, state, need)
    address = choice.address()
    assert address.isascii() and address.isprintable()
    assert Choice.of(dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))) == choice


def test_gates_are_chosen_by_name_state_and_need() -> None:
    for one in (
        Choice(),
        Choice(q="RDE"),
        Choice(state="falling behind"),
        Choice(need="falling behind"),
    ):
        assert one.includes(BEHIND), one
    for other in (
        Choice(q="x"),
        Choice(state="stalled"),
        Choice(need="dead"),
        Choice(q="o", state="x"),
    ):
        assert not other.includes(BEHIND), other
    assert Choice(sort="lag").is_all and not Choice(state="stalled").is_all


def test_an_order_that_there_is_not_is_the_first_one() -> None:
    assert Choice.of({"sort": "no", "state": "stalled"}) == Choice(state="stalled")
    assert Choice(state="x", sort="lag").address(state="") == "/?sort=lag"


def test_the_style_sheet_has_the_widths_of_the_columns() -> None:
    cells = [column for column in GATE_COLUMNS if not column.is_beside]
    assert COLUMNS_CSS.count("minmax(0, ") == len(cells)
    assert "minmax(0, 17fr) minmax(0, 14fr)" in COLUMNS_CSS
