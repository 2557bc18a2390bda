"""Start ``driver.py``, or a program like it; follow its moments, and kill it with all of it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.recovery.job import Job
from tests.recovery.sinks import surroundings_of
from tests.services.processes import descendants


class Driver:
    """One process of such a program; within ``with``, at whose end nothing of it is left.

    Args:
        job: what the program is told.
        program: the module.
        launcher: the command before the job. Default: this Python, with the module.
    """

    def __init__(
        self,
        job: Job,
        program: str = "tests.recovery.driver",
        launcher: Sequence[str] | None = None,
    ) -> None:
        job.path.mkdir(exist_ok=True)
        self._log = Path(tempfile.mkdtemp(dir=job.path)) / "driver.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*(launcher or (sys.executable, "-m", program)), job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | surroundings_of(job.sink),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def wait_for(self, moment: str, times: int = 1) -> None:
        """Return when it has come to the moment so many times from now.

        Raises:
            AssertionError: it ended before; the message shows the end of its log.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            times -= line.strip() == moment
            if times == 0:
                return
        raise AssertionError(f"it ended before {moment!r}: {self._last_words()}")

    def let_go(self) -> None:
        """Let it start its query, once it is ready."""
        self.wait_for("ready")
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Wait until it has processed everything.

        Raises:
            AssertionError: it failed; the message shows the end of its log.
        """
        assert self._process.stdout is not None
        self._process.stdout.read()
        assert self._process.wait() == 0, self._last_words()

    def crash(self) -> None:
        """Wait until it has killed itself.

        Raises:
            AssertionError: it ended otherwise; the message shows the end of its log.
        """
        assert self._process.stdout is not None
        self._process.stdout.read()
        assert self._process.wait() == -signal.SIGKILL, self._last_words()

    def told(self, words: str) -> bool:
        """Whether its log has these words."""
        return self.count(words) > 0

    def count(self, words: str) -> int:
        """How often its log has these words."""
        return self._log.read_text().count(words)

    def kill(self) -> None:
        """Kill it at once: itself, Spark's JVM, executors and Python workers."""
        started = descendants(self._process.pid)
        os.killpg(self._process.pid, signal.SIGKILL)
        for process in started:  # Spark's Python workers are in process groups of their own
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def _last_words(self) -> str:
        return self._log.read_text()[-3_000:]
