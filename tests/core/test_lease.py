import pytest

from headrace.core.timing import LONGEST_LEASE_MS, is_in_force

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("left_ms", "is_kept"),
    [
        (-1, False),
        (0, False),
        (1, True),
        (LONGEST_LEASE_MS, True),
        # Written before the clock was set back, by an hour for one.
        (LONGEST_LEASE_MS + 1, False),
        (3_600_000, False),
    ],
)
def test_a_lease_is_in_force_until_its_end_and_never_longer_than_the_longest(
    left_ms: int, is_kept: bool
) -> None:
    assert is_in_force(NOW_MS + left_ms, NOW_MS) is is_kept
