"""A server in a process of its own, which ends with the process that started it."""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

STOP_TIMEOUT_S = 15

# The server ends with this process, however this process ends: the shell that becomes the server
# leaves behind a watcher that reads our end of a pipe. A line from it is an orderly stop; its end
# without one is our death. (A death signal from the kernel is Linux's alone, and comes when the
# thread that started the server ends, not the process.)
_LAUNCH = """\
folder=$1; shift
exec 3<&0
( trap '' INT HUP
  read -r stopped || { kill -9 $$; sleep 1; rm -rf -- "$folder"; }
) <&3 >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class ServerProcess:
    """One that is started, stopped, killed and started again; for one thread at a time.

    When this process is killed, the server is too, and its folder is deleted.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Shut it down in good order, keeping its data; does nothing if it is stopped."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would; does nothing if it is stopped."""
        if process := self._process:
            process.kill()
            process.communicate(b"stopped\n")
            self._process = None

    def _launch(self, name: str, folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start it, with ``server.log`` in its folder for what it writes."""
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, name, str(folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for us, who then stop it
            )
        return self._process
