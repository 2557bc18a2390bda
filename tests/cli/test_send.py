"""``headrace send`` against real receivers."""

import json
import re
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.receivers.processes import ReceiverProcess, receiver, settings
from tests.services.certificates import Authority

from headrace.journal import Journal

pytestmark = pytest.mark.nightly


def url_of(running: ReceiverProcess, scheme: str = "http") -> str:
    host, port = running.address
    return f"{scheme}://{host}:{port}"


def numbers_in(folder: Path) -> list[int]:
    journal = Journal.open(str(folder / "events"))
    blocks = [journal.records(0, each.first) for each in journal.blocks(0)]
    values = [value for block in blocks for value in block.batch.column("value").to_pylist()]
    return [json.loads(value)["number"] for value in values]


def test_what_it_says_is_acknowledged_is_in_the_journal_once(tmp_path: Path) -> None:
    options = ["--records", "2050", "--per-request", "100", "--connections", "4"]
    with receiver(
        tmp_path, "http", "--max-rate", "2000", *settings(tmp_path, http={"wait_s": 0})
    ) as running:
        done = run("send", url_of(running), *options, "--record-bytes", "100", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Acknowledged: 2,050 records" in done.stdout
    assert re.search(r"p50 [\d.,]+ ms, p99 [\d.,]+ ms", done.stdout)
    assert sorted(numbers_in(tmp_path)) == list(range(2050))


def test_it_sends_with_a_token_over_tls_and_says_what_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    (tmp_path / "tokens").write_text("load s3cret\n")
    (tmp_path / "token").write_text("s3cret\n")
    tls = ["--tls-certificate", certificate, "--tls-key", key, "--token-file", "tokens"]
    with receiver(tmp_path, "http", *tls) as running:
        url = url_of(running, "https")
        trust = ["--records", "10", "--tls-ca", authority.ca]
        assert run("send", url, *trust, "--token-file", "token", folder=tmp_path).returncode == 0
        refused = run("send", url, *trust, folder=tmp_path)
        assert refused.returncode == 1
        assert "answers 401: The token is missing or wrong" in " ".join(refused.stderr.split())
        refused = run("send", url, "--records", "10", "--patience-s", "1", folder=tmp_path)
        assert refused.returncode == 3
        assert "no answer (SSLCertVerificationError)" in refused.stdout
    assert numbers_in(tmp_path) == list(range(10))


def test_where_nobody_listens_it_gives_up(tmp_path: Path) -> None:
    done = run("send", "http://127.0.0.1:1", "--patience-s", "0", folder=tmp_path)
    assert done.returncode == 3
    assert "Acknowledged: 0 records" in done.stdout
    wrong = run("send", "ftp://127.0.0.1", folder=tmp_path)
    assert wrong.returncode == 1
    assert "it must be http://host:port" in " ".join(wrong.stderr.split())
