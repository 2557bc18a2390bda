"""Tests of handlers without Kafka, without a database server, and without a JVM.

A test runs your handler with Headrace's own planner, ledger, failure policies, isolation, backfill
and rate estimator. The test controls the records, the time and the crashes. ::

    from headrace.testing import Crash, MemoryLog, StreamHarness

    def test_a_crash_after_the_write_doubles_nothing():
        log = MemoryLog("a", "b", Crash("after handle"), "c")
        with StreamHarness(handler, log) as stream:
            stream.run()
            assert stream.crashes == 1
        assert sink.rows == ["a", "b", "c"]
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.testing"})
