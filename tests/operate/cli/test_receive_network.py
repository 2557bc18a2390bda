"""``headrace receive`` on a network: certificates, tokens, health and a cap, by real processes."""

import http.client
import json
import os
import resource
import signal
import socket
import ssl
from pathlib import Path

import pytest
from tests.journal.receivers.processes import ReceiverProcess, receiver, settings
from tests.operate.cli.commands import run
from tests.services.certificates import Authority
from tests.services.waiting import wait_until

from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal

pytestmark = pytest.mark.nightly

RAW = {"content-type": "application/octet-stream"}


def ask(
    running: ReceiverProcess,
    path: str,
    body: bytes | None = None,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, str]:
    """Get a path, or post a body to it; answers status and body."""
    connection = http.client.HTTPConnection(*running.address, timeout=60)
    if context is not None:
        connection = http.client.HTTPSConnection(*running.address, timeout=60, context=context)
    shown = {} if token is None else {"authorization": f"Bearer {token}"}
    connection.request("GET" if body is None else "POST", path, body, RAW | shown)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def status(running: ReceiverProcess, path: str) -> int:
    return ask(running, path)[0]


def test_lines_come_over_tls_and_the_receiver_tells_its_health_at_another_port(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    options = ["--tls-certificate", certificate, "--tls-key", key, "--acknowledge"]
    with receiver(tmp_path, "tcp", *options, *settings(tmp_path, status_port=0)) as running:
        assert running.wait_for("receiving")["address"].startswith("tcps://127.0.0.1:")
        context = ssl.create_default_context(cafile=authority.ca)
        plain = socket.create_connection(running.address, timeout=60)
        sender = context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False)
        sender.sendall(b"1\n2\n")
        assert sender.recv(100) == b"ok 2\n"
        host, port = running.wait_for("status")["address"].removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        assert 'accepted_records_total{journal="events",lane="0"} 2.0' in text
        connection.close()
        running.send(signal.SIGTERM)
        assert sender.recv(100) == b"", "the end is within TLS too, so that nobody can fake it"
        sender.close()
        assert running.ended() == 0


def test_a_disk_that_takes_nothing_is_told_and_so_is_one_that_does_again(tmp_path: Path) -> None:
    with receiver(tmp_path, "http") as running:
        assert status(running, "/health") == 200
        before = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (2_000, before[1]))
        assert ask(running, "/records", os.urandom(9_000))[0] == 503
        code, answer = ask(running, "/health")
        assert code == 503
        assert "could not be made durable" in answer or "Nothing can be stored" in answer
        assert status(running, "/ready") == 503
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, before)
        wait_until(lambda: status(running, "/health") == 200)  # without a record
        assert ask(running, "/records", b"x" * 9_000)[0] == 200
    journal = Journal.open(str(tmp_path / "events"))
    assert [block.until for block in journal.blocks(0)] == [1]
    assert not [name for name in journal.storage.names("0") if "probe" in name]


def test_at_its_cap_senders_wait_and_status_says_why(tmp_path: Path) -> None:
    cap = ["--max-journal-bytes", "20000", "--gate", "orders"]
    cap += settings(tmp_path, block_bytes=10_000, initial_rate=1_000)
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
    with receiver(tmp_path, "http", *cap) as running:
        sent = 0
        answer = (200, "")
        while answer[0] == 200:
            answer = ask(running, "/records", sent.to_bytes(2) + bytes(2_000))
            sent += answer[0] == 200
        assert answer[0] == 503
        assert "events has" in answer[1]
        assert "max_journal_bytes is 20,000" in answer[1]
        assert [status(running, path) for path in ("/health", "/ready")] == [200, 503]
        assert running.wait_for("refusing")["reason"]

        def told() -> dict[str, str]:
            said = run("status", "--json", folder=tmp_path).stdout
            return dict(json.loads(said.splitlines()[0])["receivers"][0])

        wait_until(lambda: told()["state"] == "refusing")
        assert "max_journal_bytes" in told()["refusing"]
        assert "max_journal_bytes" in " ".join(run("status", folder=tmp_path).stdout.split())
        journal = Journal.open(str(tmp_path / "events"))
        end = journal.bounds()[0][1]
        assert end == sent
        journal.remove_before(0, journal.blocks(0)[-1].first)
        wait_until(lambda: ask(running, "/records", b"again")[0] == 200)
        assert running.events("released")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["http", "--tls-key", "k"], "without the receiver's certificate file"),
        (["http", "--tls-certificate", "a.pem"], "No such file"),
        (["tcp", "--token-file", "empty"], "contains no token, so anyone could send"),
        (["http", "--max-journal-bytes", "1000"], "less than one block of 8388608 bytes"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "empty").write_text("\n")
    kind, *others = options
    ended = run("receive", kind, "--journal", "events", "--port", "0", *others, folder=tmp_path)
    assert ended.returncode == 1
    assert words in " ".join(ended.stderr.split())
    assert len(ended.stderr.strip().split("\n")) <= 4
