"""Observe a receiver from outside while hostile senders, and a good one, send to it."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.receivers.processes import ReceiverProcess, receiver
from tests.receivers.zoo.record import Entry, quantile_s, read
from tests.services.certificates import Authority
from tests.services.waiting import wait_until

MIB = 1_048_576
MOST_MEMORY_BYTES = 256 * MIB
"""`--max-memory-bytes`; docs/receivers.md has what each kind takes."""

_SAMPLE_S = 0.01


class Memory:
    """Resident memory of a process and its children, sampled, above that of the idle process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.idle_bytes = self.now_bytes()
        self._peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now_bytes(self) -> int:
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(process.memory_info().rss for process in processes)

    def take_peak_bytes(self) -> int:
        """The peak since the last call, above the idle process."""
        peak, self._peak_bytes = self._peak_bytes, 0
        return peak - self.idle_bytes

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._peak_bytes = max(self._peak_bytes, self.now_bytes())


class Helper:
    """Another process of the zoo: it reads commands and prints answers, a line each."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.receivers.zoo.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **command: object) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "The process has ended; see its standard error."
        return json.loads(line)

    def end(self) -> None:
        """Have it finish what it does, and wait for that."""
        self._process.communicate(timeout=90)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Row:
    """Effect of one kind at one number of copies."""

    kind: str
    copies: int
    visits: int
    peak_bytes: int
    after_bytes: int
    alone: list[Entry]
    beside: list[Entry]

    @property
    def ratio(self) -> float:
        """The good sender's p99 beside it, by its p99 alone."""
        alone_s = quantile_s(self.alone)
        return quantile_s(self.beside) / alone_s if alone_s else 0.0


@dataclass
class Zoo:
    """A receiver that runs, its good sender, and the process of hostile senders."""

    running: ReceiverProcess
    memory: Memory
    hostile: Helper
    good: Helper
    journal: Path
    record: Path
    acknowledged: list[tuple[int, int]] = field(default_factory=list)

    def answered_since(self, start_s: float) -> list[Entry]:
        """Good records that were sent since then, and acknowledged."""
        return [entry for entry in read(self.record) if entry.began_s >= start_s]

    def watch(self, kind: str, copies: int, duration_s: float, rest_s: float) -> Row:
        """Let a kind in; then wait for the good sender's next answer, and rest."""
        alone_s = time.monotonic() - rest_s
        self.memory.take_peak_bytes()
        began_s = time.monotonic()
        alone = [entry for entry in self.answered_since(alone_s) if entry.began_s < began_s]
        answer = self.hostile.ask(kind=kind, copies=copies, s=duration_s)
        ended_s = time.monotonic()
        self.acknowledged += [(first, until) for first, until in answer.get("acknowledged", ())]
        wait_until(lambda: self.answered_since(ended_s))
        peak_bytes = self.memory.take_peak_bytes()
        if rest_s:
            time.sleep(rest_s)
        after_bytes = self.memory.now_bytes() - self.memory.idle_bytes
        beside = [entry for entry in self.answered_since(began_s) if entry.began_s < ended_s]
        return Row(kind, copies, answer["visits"], peak_bytes, after_bytes, alone, beside)

    def end(self) -> list[str]:
        """Have the good sender end; returns what is wrong with what is in the journal."""
        self.good.end()
        stored = json.loads(
            subprocess.run(
                [sys.executable, "-m", "tests.receivers.zoo.stored", self.journal],
                check=True,
                capture_output=True,
            ).stdout
        )
        problems = []
        acknowledged = [entry.value for entry in read(self.record)]
        for value in acknowledged:
            times = stored["good"].pop(value, 0)
            if times != 1:
                problems.append(f"{value} was acknowledged, and is stored {times} times")
        problems += [f"{value} was not acknowledged and is stored" for value in stored["good"]]
        before = 0
        for first, until in sorted(self.acknowledged):
            if not before <= first <= until <= stored["until"]:
                problems.append(
                    f"the offsets {first} to {until} were acknowledged twice or not stored"
                )
            before = until
        return problems


@contextlib.contextmanager
def zoo(protocol: str, folder: Path) -> Iterator[Zoo]:
    """Run a receiver for a protocol, with a good sender and a process for hostile ones."""
    record = folder / "good.jsonl"
    with contextlib.ExitStack() as stack:

        def helper(module: str, *more: object) -> Helper:
            started = Helper(module, *more)
            stack.callback(started.kill)
            return started

        if protocol == "mqtt":
            hostile = good = helper("hostile", protocol, record)
            url = f"mqtt://127.0.0.1:{hostile.answer()['port']}"
            arguments = ["mqtt", "--journal", "events", "--url", url]
            arguments += ["--topic", "sensors/#", "--topic", "t/#"]
            running = ReceiverProcess(folder, arguments, {})
            stack.callback(running.process.wait)
            stack.callback(running.process.kill)
        else:
            arguments, authority = ["tcp" if protocol == "tcp" else "http"], []
            arguments += ["--acknowledge"] if protocol == "tcp" else []
            if protocol == "tls":
                signed = Authority(folder)
                files, authority = signed.issue("server"), [signed.ca]
                arguments += ["--tls-certificate", files.certificate, "--tls-key", files.key]
            running = stack.enter_context(receiver(folder, *arguments))
            _, port = running.address
            hostile = helper("hostile", protocol, port, *authority)
            good = helper("good_sender", protocol, port, record, *authority)
        wait_until(lambda: record.exists() and len(read(record)) >= 20)
        memory = Memory(running.process.pid)
        stack.callback(memory.close)
        yield Zoo(running, memory, hostile, good, folder / "events", record)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown: a line for each kind, with its memory and ratios."""
    counts = sorted({row.copies for row in rows})
    found = {(row.kind, row.copies): row for row in rows}
    lines = [
        f"| kind | memory at {counts[-1]} (MiB) | 5 s after (MiB) |"
        + "".join(f" p99 ratio at {count} |" for count in counts)
    ]
    lines.append("| --- |" + " --- |" * (2 + len(counts)))
    for kind in dict.fromkeys(row.kind for row in rows):
        last = found[kind, counts[-1]]
        cells = [f"{last.peak_bytes / MIB:.0f}", f"{last.after_bytes / MIB:.0f}"]
        cells += [f"{found[kind, count].ratio:.1f}" for count in counts]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
