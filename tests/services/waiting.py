"""Wait for what happens in another thread or process, never for the clock."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(condition: Callable[[], Answer], timeout_s: float = 90.0) -> Answer:
    """Call ``condition`` until its answer is true, and return that answer.

    Only a test that fails waits to the end, so that it may be far: other runs use the machine, too.

    Raises:
        AssertionError: It is not by the deadline; the message shows the last answer.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s} s the condition is still {answer!r}")
        time.sleep(0.02)
    return answer
