"""Work that a receiver's process has done before its first record comes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

_PROGRAM = """
import gc, sys
from headrace.journal.records import Records
from headrace.journal.receivers.memory_budget import warm_up

warm_up()
modules = set(sys.modules)
Records.of_lines(b"{}", timestamp_ms=1).with_ids(["a"])
assert set(sys.modules) == modules, set(sys.modules) - modules
assert gc.get_freeze_count() > len(modules), gc.get_freeze_count()
"""


def test_the_first_record_loads_nothing_and_the_collector_has_little_to_look_at() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60)
