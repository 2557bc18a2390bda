from concurrent.futures import ThreadPoolExecutor

from headrace.core.timing import cancel_when, cancellation


def test_the_innermost_cancellation_holds_within_and_for_its_thread_alone() -> None:
    assert cancellation() is None
    with cancel_when(lambda: False, "outer"):
        with cancel_when(lambda: True, "inner"):
            found = cancellation()
            assert found is not None
            assert (found.is_requested(), found.reason) == (True, "inner")
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(cancellation).result() is None
        found = cancellation()
        assert found is not None
        assert found.reason == "outer"
    assert cancellation() is None
