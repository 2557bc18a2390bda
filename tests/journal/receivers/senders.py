"""A receiver that real programs send to, and what can go wrong on the way there."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.journal.receivers.serving import DEADLINE_S, Journal, receiving
from tests.services.debian import program

from headrace.errors import JournalError
from headrace.journal.receivers import HttpReceiver, HttpSettings, Intake, IntakeSettings
from headrace.operate.local.servers import free_ports


class Counter:
    """A receiver at a port that stays its own while it comes and goes; its journal stays too."""

    def __init__(self, **settings: float) -> None:
        (self.port,) = free_ports(1)
        self.journal = Journal()
        self.rejections: dict[str, int] = {}
        self._settings = settings

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, times: int) -> None:
        """Answer so many requests 503: their blocks are not stored."""
        self.journal.failures += [JournalError("The disk is full.") for _ in range(times)]

    def rejected(self, kind: str) -> int:
        """Return the number of rejections of this kind, since it was opened."""
        return self._intake.rejections.totals[kind]

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Intake]:
        settings = HttpSettings(port=self.port, **self._settings)  # type: ignore[arg-type]
        receiver = HttpReceiver(settings, stop_s=DEADLINE_S).listen()
        async with receiving(receiver, self.journal, IntakeSettings(block_interval_ms=1)) as intake:
            self._intake = intake
            yield intake
            for kind, count in intake.rejections.totals.items():
                self.rejections[kind] = self.rejections.get(kind, 0) + count


def orders(counter: Counter) -> list[int]:
    """The numbers in the log records that were stored."""
    found = []
    for value in counter.journal.values:
        (log,) = json.loads(value)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        found.append(int(log["body"]["stringValue"].removeprefix("order ")))
    return found


@contextlib.asynccontextmanager
async def without_answers(port: int, times: int) -> AsyncIterator[int]:
    """Another port of a receiver, over which the first answers do not come back; answers it."""
    left = times
    connections = set[asyncio.Task[None]]()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        connection = asyncio.current_task()
        assert connection
        connections.add(connection)
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def forward() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    back.write(data)
                    await back.drain()

        forwarding = asyncio.create_task(forward())
        try:
            while data := await there.read(65_536):
                if left > 0:
                    left -= 1
                    break  # the records are durable, and nobody tells their sender
                writer.write(data)
                await writer.drain()
        finally:
            forwarding.cancel()
            for each in (back, writer):
                each.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for each in connections:
            each.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def run_program(
    *arguments: str, stdin: bytes = b"", variables: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a program to its end; answers its exit status and what it said."""
    program = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=variables or dict(os.environ),
    )
    try:
        said, _ = await program.communicate(stdin)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode is not None
    return program.returncode, said.decode()


def lines(folder: Path, numbers: Sequence[int]) -> Path:
    """A file of NDJSON, and so the record of what is sent."""
    file = folder / "orders.ndjson"
    file.write_text("".join(f'{{"order":{number}}}\n' for number in numbers))
    return file


def lines_of(file: Path, values: Sequence[bytes]) -> None:
    """Add lines to a file that is followed."""
    with file.open("ab") as log:
        log.write(b"".join(value + b"\n" for value in values))


SYSLOG_NG = """
@version: 3.38
source lines {{ file("{folder}/sent.log" flags(no-parse) follow-freq(0.1)); }};
destination receiver {{ {destination} }};
log {{ source(lines); destination(receiver); flags(flow-control); }};
"""


@contextlib.asynccontextmanager
async def syslog_ng(folder: Path, destination: str) -> AsyncIterator[Path]:
    """The real program, which follows a file; answers the file."""
    found = program("syslog-ng")
    configured = SYSLOG_NG.format(folder=folder, destination=destination)
    (folder / "syslog-ng.conf").write_text(configured)
    sent = folder / "sent.log"
    sent.touch()
    modules = next(found.root.glob("usr/lib/syslog-ng/*/libhttp.so"), None)
    assert modules, "These tests need syslog-ng's module http; install syslog-ng-mod-http."
    arguments = [found.path, "-F", "--no-caps", f"--module-path={modules.parent}"]
    arguments += ["-f", f"{folder}/syslog-ng.conf", "-R", f"{folder}/persist"]
    arguments += ["-c", f"{folder}/control", "-p", f"{folder}/pid"]
    with (folder / "syslog-ng.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            *arguments, "--stderr", env=found.variables, stdout=log, stderr=log
        )
    try:
        yield sent
    finally:
        running.kill()
        await running.wait()
