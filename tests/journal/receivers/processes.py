"""``headrace receive`` in a process of its own, and what it says."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.operate.cli.commands import COMMAND
from tests.services.waiting import wait_until


class ReceiverProcess:
    """A receiver that runs, with its log as JSON lines in a file."""

    def __init__(self, folder: Path, arguments: list[str], variables: Mapping[str, str]) -> None:
        numbers = len(list(folder.glob("receiver-*.log")))
        self._log = folder / f"receiver-{numbers}.log"
        self._errors = folder / f"receiver-{numbers}.err"
        with self._log.open("w") as log, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "receive", *arguments, "--json"],
                cwd=folder,
                env={**os.environ, **variables},
                stdout=log,
                stderr=errors,
                start_new_session=True,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one kind in its log so far."""
        whole = self._log.read_text().rpartition("\n")[0]
        told = [json.loads(line) for line in whole.splitlines()]
        return [each for each in told if each["event"] == name]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait until it says so, and answer the last such event."""
        wait_until(lambda: self.events(name) or self._ended())
        assert self.events(name), self.errors
        return self.events(name)[-1]

    @property
    def address(self) -> tuple[str, int]:
        """The address at which it listens, once it does."""
        place = urlsplit(self.wait_for("receiving")["address"])
        assert place.hostname
        assert place.port
        return place.hostname, place.port

    @property
    def errors(self) -> str:
        """Return the text that it wrote to the standard error."""
        return self._errors.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; answers its exit status."""
        return self.process.wait(60)

    def _ended(self) -> bool:
        return self.process.poll() is not None


def settings(folder: Path, **parts: Any) -> list[str]:
    """Write a settings file with these keys; of a section, where the value is a dict of them."""
    flat = [
        f"{key} = {json.dumps(value)}"
        for key, value in parts.items()
        if not isinstance(value, dict)
    ]
    for name, section in parts.items():
        if isinstance(section, dict):
            flat += [f"[{name}]", *(f"{key} = {json.dumps(v)}" for key, v in section.items())]
    file = folder / "receiver.toml"
    file.write_text("\n".join(flat) + "\n")
    return ["--settings", str(file)]


@contextmanager
def receiver(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[ReceiverProcess]:
    """Run ``headrace receive`` on a free port over the journal ``events`` in a folder."""
    places = ["--journal", "events", "--port", "0"]
    running = ReceiverProcess(folder, [*arguments, *places], variables or {})
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
