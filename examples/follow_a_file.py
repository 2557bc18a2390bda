"""A receiver of one's own: follow a file as it grows, each line a record, none lost and none twice.

python examples/follow_a_file.py app.log journals/app-log
"""

import asyncio
import sys
import time
from pathlib import Path

from headrace.journal import Records
from headrace.journal.receivers import Hosting, Intake, host


class FollowedFile:
    """Hands in each line once it is whole; its place in the file is its message id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Behind the last line that is known to be durable. Lines after it are read again after a
        # crash, and are known by their ids.
        self.bookmark = path.with_suffix(".bookmark")

    async def receive(self, intake: Intake) -> None:
        """Follow it until cancelled."""
        at = int(self.bookmark.read_text()) if self.bookmark.exists() else 0
        with self.path.open("rb") as file:
            file.seek(at)
            while True:
                lines = [line for line in file.readlines(1_000_000) if line.endswith(b"\n")]
                ids = []
                for line in lines:
                    ids.append(f"{self.path.name}:{at}")
                    at += len(line)
                file.seek(at)  # a line that is not whole yet is read again
                if not lines:
                    await asyncio.sleep(0.1)
                    continue
                values = [line.rstrip(b"\n") for line in lines]
                now_ms = time.time_ns() // 1_000_000
                # Returns when they are durable; waits while more come than the job can process.
                await intake.submit(Records.of(values, ids=ids, timestamp_ms=now_ms))
                new = self.bookmark.with_suffix(".new")
                new.write_text(str(at))
                new.replace(self.bookmark)


if __name__ == "__main__":
    path, journal = sys.argv[1:]
    host(FollowedFile(Path(path)), Hosting(journal=journal))
