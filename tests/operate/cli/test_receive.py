"""``headrace receive``: real processes, sockets and signals."""

import http.client
import itertools
import json
import re
import resource
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from tests.gate.ledger.samples import a_sample
from tests.journal.receivers.processes import ReceiverProcess, receiver, settings
from tests.operate.cli.commands import COMMAND, run
from tests.operate.cli.conftest import Complain
from tests.services.ledgers import report_sample
from tests.services.waiting import wait_until

from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal
from headrace.journal.receivers.settings_file import default_file
from headrace.operate.cli.shared_options import DEFAULT_LEDGER

_TOKEN = "s3cret"  # noqa: S105


def stored_in(folder: Path, lane: int = 0) -> list[bytes]:
    journal = Journal.open(str(folder / "events"))
    blocks = [journal.records(lane, each.first) for each in journal.blocks(lane)]
    return [value for block in blocks for value in block.batch.column("value").to_pylist()]


def holds_some(ledger: Ledger) -> bool:
    """Whether the receiver of the gate ``orders`` has records that are not durable yet."""
    return any(each.buffered_bytes for each in ledger.moments.receivers(["orders"]))


class Posted(threading.Thread):
    """A request on its way."""

    def __init__(self, running: ReceiverProcess, body: str, **headers: str) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(*running.address, timeout=60)
        self._body, self._headers = body, {"content-type": "application/json"} | headers
        self.status, self.answer = 0, dict[str, object]()
        self.start()

    def run(self) -> None:
        self._connection.request("POST", "/records", self._body, self._headers)
        response = self._connection.getresponse()
        self.status, self.answer = response.status, json.loads(response.read())
        self._connection.close()

    def done(self) -> tuple[int, dict[str, object]]:
        self.join(60)
        return self.status, self.answer


@pytest.mark.integration
def test_it_follows_its_gate_and_ends_when_what_it_took_is_durable_and_acknowledged(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    options = ["--gate", "orders", "--max-rate", "900"]
    with receiver(tmp_path, "http", *options, "--lane", "7") as running, Ledger.open(url) as ledger:
        assert running.wait_for("limit")["limit_per_s"] == 900
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
        report_sample(ledger, a_sample(1, 500.0))
        wait_until(lambda: running.events("limit")[-1]["limit_per_s"] == 500)
        posted = Posted(running, "[1, 2, 3]")
        assert posted.done() == (200, {"lane": 7, "first": 0, "until": 3})
        running.send(signal.SIGTERM)
        assert running.ended() == 0
        assert ledger.moments.receivers(["orders"]) == ()
    ended = running.wait_for("ended")
    assert (ended["stored_records"], ended["lane"], ended["offset"]) == (3, 7, 3)
    assert running.errors == ""
    assert stored_in(tmp_path, lane=7) == [b"1", b"2", b"3"]


@pytest.mark.integration
def test_lines_are_acknowledged_to_who_has_the_token_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    variables = {"HEADRACE_TOKEN": _TOKEN}
    with receiver(tmp_path, "tcp", "--acknowledge", variables=variables) as running:
        for token, answer in (("wrong", b"error "), (_TOKEN, b"ok 2\n")):
            with socket.create_connection(running.address, timeout=60) as sender:
                sender.sendall(f"token {token}\none\ntwo\n".encode())
                assert sender.recv(1_000).startswith(answer)
        running.send(signal.SIGINT)
        assert running.ended() == 0
    assert stored_in(tmp_path) == [b"one", b"two"]
    assert _TOKEN not in json.dumps([running.events(each) for each in ("receiving", "log")])


@pytest.mark.integration
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    # nobody waits for an answer
    slow = [*settings(tmp_path, block_interval_ms=600_000), "--gate", "orders"]
    with (
        receiver(tmp_path, "tcp", *slow) as running,
        socket.create_connection(running.address, timeout=60) as sender,
        Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger,
    ):
        sender.sendall(b"never answered\n")
        wait_until(lambda: holds_some(ledger))
        running.send(signal.SIGINT)
        running.wait_for("ending")
        running.send(signal.SIGINT)
        assert running.ended() == 130
    assert stored_in(tmp_path) == []


def take_descriptors(process: int) -> tuple[int, int]:
    """Let a process open no file more; answers its limits before."""
    used = {int(each.name) for each in Path(f"/proc/{process}/fd").iterdir()}
    free = next(number for number in itertools.count() if number not in used)
    _, most = before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (free, most))
    return before


@pytest.mark.integration
def test_without_a_free_file_descriptor_an_open_segment_is_appended_to(
    tmp_path: Path,
) -> None:
    with receiver(tmp_path, "tcp", "--acknowledge") as running:
        process = running.process.pid
        with socket.create_connection(running.address, timeout=60) as sender:
            sender.sendall(b"one\n")
            assert sender.recv(1_000) == b"ok 1\n"
            before = take_descriptors(process)
            sender.sendall(b"two\n")
            with sender.makefile() as answers:
                assert answers.readline() == "ok 1\n"
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)
        with socket.create_connection(running.address, timeout=60) as sender:
            sender.sendall(b"three\n")
            assert sender.recv(1_000) == b"ok 1\n"
        running.send(signal.SIGTERM)
        assert running.ended() == 0
    assert stored_in(tmp_path) == [b"one", b"two", b"three"]


@pytest.mark.integration
def test_people_read_lines_on_the_standard_error(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{_TOKEN}\n")
    arguments = ["--journal", "events", "--port", "0", "--token-file", str(token)]
    process = subprocess.Popen(
        [*COMMAND, "receive", "http", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        process.terminate()
        out, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    told = re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d Receiving at http://127\.0\.0\.1:\d+/records into lane 0"
        r" of the journal events, from offset 0 on\.\n",
        line,
    )
    assert told, line + rest
    assert (out, process.returncode) == ("", 0)
    assert "The receiver has ended; records stored: 0" in rest
    assert _TOKEN not in rest


@pytest.mark.integration
def test_the_settings_are_printed_and_what_moved_there_is_no_option(tmp_path: Path) -> None:
    printed = run("receive", "--print-settings", folder=tmp_path)
    assert (printed.returncode, printed.stdout) == (0, default_file())
    (tmp_path / "all.toml").write_text(printed.stdout)
    wrong = run(
        "receive", "http", "--journal", "events", "--settings", "all.toml", "--wait-s", "1",
        folder=tmp_path,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "--wait-s" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http", "--port", "{taken}"], "cannot listen on port {taken} of host '127.0.0.1'"),
        (["tcp", "--port", "65536"], "port is 65536; it must be 1 to 65535"),
        (["tcp", "--ledger", "sqlite:///a.db"], "--ledger is given without --gate"),
        (
            ["http", "--max-rate", "0"],
            "max_rate is 0.0 records/s; it must be a finite number above",
        ),
        (["http", "--token-file", "{folder}/none"], "none cannot be read: No such"),
        (["tcp", "--port", "0", "--lane", "100000"], "100000"),
        (["tcp", "--port", "0", "--gate", "a", "--ledger", "mysql://db"], "cannot be kept in"),
        (["http", "--max-memory-bytes", "5"], "max_memory_bytes is 5, less than four blocks"),
    ],
    ids=["port", "ports", "ledger alone", "rate", "token", "lane", "ledger", "memory"],
)
def test_what_is_wrong_is_told_in_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, complain: Complain
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"taken": taken.getsockname()[1], "folder": tmp_path}
        words = [word.format(**known) for word in arguments]
        journal = ["--journal", str(tmp_path / "events")]
        said = complain(DEFAULT_LEDGER, "receive", *words, *journal)
    assert sentence.format(**known) in said


def test_keys_are_checked_with_the_options_that_bound_them(
    tmp_path: Path, complain: Complain
) -> None:
    file = settings(tmp_path, block_bytes=100_000_000)
    command = ["receive", "http", "--journal", str(tmp_path / "events"), *file]
    said = complain(DEFAULT_LEDGER, *command)
    assert "max_memory_bytes is 268435456, less than four blocks of 100000000 bytes" in said
    said = complain(DEFAULT_LEDGER, *command, "--max-memory-bytes", "400000000", "--port", "65536")
    assert "port is 65536" in said


def test_an_empty_token_is_refused_rather_than_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complain: Complain
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "")
    said = complain(DEFAULT_LEDGER, "receive", "http", "--journal", str(tmp_path / "events"))
    assert "The token is not valid" in said
