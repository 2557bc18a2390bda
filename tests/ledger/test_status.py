from headrace.ledger import ARROWS, Status


def test_the_arrows_are_those_of_the_reference() -> None:
    moves = {arrow.letter: (arrow.before, arrow.after) for arrow in ARROWS}
    assert moves == {
        "A": (None, "in_progress"),
        "B": ("in_progress", "in_progress"),
        "C": ("failed", "in_progress"),
        "D": ("in_progress", "success"),
        "E": ("in_progress", "failed"),
        "F": ("failed", "backfilling"),
        "G": ("backfilling", "success"),
        "H": ("backfilling", "failed"),
        "I": ("backfilling", "dead"),
    }


def test_an_attempt_is_counted_when_a_batch_is_begun_and_when_its_backfill_fails() -> None:
    assert {arrow.letter for arrow in ARROWS if arrow.attempts} == set("ABCH")
    assert {arrow.attempts for arrow in ARROWS} == {0, 1}


def test_no_arrow_leaves_success_or_dead() -> None:
    assert not [arrow for arrow in ARROWS if arrow.before in {Status.SUCCESS, Status.DEAD}]


def test_every_status_can_be_reached() -> None:
    reached: set[Status | None] = {None}
    while more := {arrow.after for arrow in ARROWS if arrow.before in reached} - reached:
        reached |= more
    assert reached == {None, *Status}


def test_no_two_arrows_join_the_same_two_statuses() -> None:
    assert len({(arrow.before, arrow.after) for arrow in ARROWS}) == len(ARROWS)
