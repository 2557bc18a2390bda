import pytest

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.testing import MemoryLog


def test_what_is_gone_in_part_is_not_read_without_what_is_gone() -> None:
    log = MemoryLog("a", "b", "c")
    log.delete_before(1)
    with pytest.raises(DataLossError, match=r"records-0 \[0, 1\)$"):
        log.read([OffsetRange("records", 0, 0, 3)])
    assert [row.value for row in log.read([OffsetRange("records", 0, 1, 3)])] == [b"b", b"c"]
