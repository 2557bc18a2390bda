"""Work that a receiver's process has done before its first record comes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

_PROGRAM = """
import gc, sys
from headrace.journal.records import Records
from headrace.receivers.memory_budget import warm_up

warm_up()
modules = set(sys.modules)
Records.of_lines(b"{}", timestamp_ms=1).with_ids(["a"])
assert set(sys.modules) == modules, set(sys.modules) - modules
assert gc.get_freeze_count() > len(modules), gc.get_freeze_count()
"""


def test_the_first_record_loads_nothing_and_the_collector_has_little_to_look_at() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60)


_LARGE_BLOCKS = """
import threading
from headrace.receivers.unused_memory import give_back_large_blocks, resident_bytes

give_back_large_blocks()
idle_bytes = resident_bytes()
threads_end = threading.Event()

def take_and_free(freed):
    for _ in range(3):
        whole = bytes().join([bytes(10_000_000)] * 3)
        bytes(memoryview(whole)[1:])
        del whole
    freed.set()
    threads_end.wait()

for _ in range(4):  # each has a heap of its own
    freed = threading.Event()
    threading.Thread(target=take_and_free, args=(freed,)).start()
    freed.wait()
left_bytes = resident_bytes() - idle_bytes
threads_end.set()
assert left_bytes < 10_000_000, left_bytes
"""


def test_large_blocks_go_back_when_they_are_freed_in_threads_too() -> None:
    subprocess.run([sys.executable, "-c", _LARGE_BLOCKS], check=True, timeout=60)
