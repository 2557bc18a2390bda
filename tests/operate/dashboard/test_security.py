"""Requests that are refused over plain HTTP: forged, foreign, too large, or without a token."""

import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.operate.dashboard.conftest import TOKEN, Serve, dashboards
from tests.operate.dashboard.histories import a_ledger, add_failure

from headrace.gate.ledger.ledger import Ledger

pytestmark = pytest.mark.nightly

EVERYWHERE = "0.0.0.0"  # noqa: S104  (for one test, with a token)


@dataclass(frozen=True)
class Shared:
    """A dashboard for all that leaves it as it was: most of these tests are refused."""

    address: str
    ledger: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    ledger = a_ledger(f"sqlite:///{folder / 'ledger.db'}")
    with dashboards(folder) as start:
        yield Shared(start(ledger), ledger)


@pytest.fixture
def address(shared: Shared) -> str:
    return shared.address


def limits(ledger_url: str) -> int:
    """Return the number of times that operators have limited the gate."""
    with Ledger.open(ledger_url) as ledger:
        return len(ledger.operator_limits.history("orders"))


def sign_in(client: httpx.Client, token: str = TOKEN, who: str = "Ada") -> httpx.Response:
    return client.post("/sign-in", data={"token": token, "who": who, "next": "/"})


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_reading_is_free_on_this_machine_and_acting_is_not(shared: Shared) -> None:
    before = limits(shared.ledger)
    with httpx.Client(base_url=shared.address) as client:
        assert client.get("/").status_code == 200
        refused = client.post("/act/pause", data={"gate": "orders", "why": "x"})
        assert refused.status_code == 401
        assert "Sign in" in refused.text
    assert limits(shared.ledger) == before


def test_a_wrong_token_is_refused_and_guessing_ends(serve: Serve, url: str) -> None:
    with httpx.Client(base_url=serve(url)) as client:
        wrong = sign_in(client, "x" * 32)
        assert wrong.status_code == 403
        assert "The token is wrong" in wrong.text
        assert [sign_in(client, f"{n}").status_code for n in range(10)][-1] == 429
        assert sign_in(client).status_code == 429


def test_a_form_needs_the_token_of_its_session(shared: Shared) -> None:
    before = limits(shared.ledger)
    with httpx.Client(base_url=shared.address) as client:
        answer = sign_in(client)
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"].lower()
        assert "samesite=strict" in cookie and "httponly" in cookie
        data = {"gate": "orders", "why": "x"}
        for given in ({}, {"form_token": "made up"}, {"form_token": "ü"}):
            assert client.post("/act/pause", data=data | given).status_code == 403
        own = form_token(client.get("/gate/orders").text)
        done = client.post("/act/pause", data=data | {"form_token": own})
        assert done.status_code == 303
        # To load the page of what was done again does not do it again.
        told = [client.get(done.headers["location"]).text for _ in range(2)]
        assert all("orders: paused by" in each for each in told)
        assert httpx.get(shared.address + done.headers["location"]).status_code == 303
        unheard = {"gate": "unheard", "why": "x", "form_token": own}
        assert client.post("/act/pause", data=unheard).status_code == 404
        empty = client.post("/act/pause", data={"gate": "orders", "form_token": own})
        assert "The reason is empty" in empty.text
    assert limits(shared.ledger) == before + 1


def test_another_site_cannot_post(address: str) -> None:
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = httpx.post(f"{address}/sign-in", data={"token": TOKEN}, headers=headers)
        assert answer.status_code == 403
        assert "Another site" in answer.text


def test_a_host_that_is_not_its_own_is_refused(address: str) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::", "orders@evil.example"):
        answer = httpx.get(address, headers={"host": host})
        assert answer.status_code in (400, 421), host
        assert "<script>" not in answer.text
    port = address.rpartition(":")[2]
    assert httpx.get(address, headers={"host": f"localhost:{port}"}).status_code == 200


def test_every_answer_forbids_scripts_from_elsewhere_and_frames(address: str) -> None:
    for path in ("/", "/nowhere", "/static/dashboard.js", "/gate/none", "/live?at=/nowhere"):
        headers = httpx.get(address + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    page = httpx.get(address).text
    assert not re.search(r"<script>|\son\w+=|style=|https?://(?!127)", page)


def test_a_body_of_10_mb_is_refused_with_an_answer(address: str) -> None:
    answer = httpx.post(f"{address}/sign-in", content=b"x" * 10_000_000, timeout=60)
    assert answer.status_code == 413
    assert "64 KiB" in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/gate/none", 404),
        (f"/gate/{'x' * 2_000}", 404),
        ("/batch/../../etc/passwd", 404),
        ("/batch/xyz", 404),
        ("/letter/99999999999999999999999", 404),
        ("/letter/%00", 404),
        ("/static/..%2Fapp.py", 404),
        ("/series/none", 404),
        ("/gate/%ff%00", 404),
        ("/act/pause", 404),
        ("/?q=%00%ff%E2%80%AE&sort=x", 200),
        ("/failures?gate=%00", 200),
    ],
)
def test_strange_addresses_get_a_clear_answer(address: str, path: str, status: int) -> None:
    answer = httpx.get(address + path)
    assert answer.status_code == status
    assert "failed to serve this page" not in answer.text


def test_after_signing_in_nobody_is_sent_elsewhere(address: str) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "\r\nx: y"):
        data = {"token": TOKEN, "who": "Ada", "next": target}
        answer = httpx.post(f"{address}/sign-in", data=data)
        assert answer.headers["location"] == "/"


def test_on_another_address_reading_needs_the_token_too(serve: Serve, url: str) -> None:
    address = serve(url, "--host", EVERYWHERE, "--allow-host", "127.0.0.1")
    address = address.replace(EVERYWHERE, "127.0.0.1")
    asked = httpx.get(address, headers={"accept": "text/html"})
    assert asked.status_code == 401 and "Your name" in asked.text
    assert httpx.get(f"{address}/series/orders").status_code == 401
    assert httpx.get(f"{address}/live?at=/").status_code == 401
    right = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{address}/series/orders", headers=right).status_code == 200
    wrong = {"authorization": "Bearer x"}
    assert httpx.get(f"{address}/series/orders", headers=wrong).status_code == 401


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "dashboard", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_port_that_is_taken_is_one_sentence(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("--ledger", url, "--port", port)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_newer_schema_and_a_missing_token_are_one_sentence(url: str, tmp_path: Path) -> None:
    without = run("--ledger", url, "--host", EVERYWHERE)
    assert without.returncode == 1 and "without a token" in without.stderr
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        file.execute("UPDATE headrace_version SET version_num = '9999'")
    file.close()
    newer = run("--ledger", url, "--port", "0")
    assert newer.returncode == 1 and "newer Headrace" in newer.stderr


def test_a_secret_of_the_ledger_s_url_is_on_no_page(serve: Serve) -> None:
    address = serve("postgresql://me:hunter2@127.0.0.1:1/none")
    answer = httpx.get(address, timeout=60)
    assert answer.status_code == 503
    assert "cannot be reached" in answer.text
    assert "hunter2" not in answer.text


def test_a_gate_with_a_line_end_in_its_name_has_a_page(shared: Shared) -> None:
    with Ledger.open(shared.ledger) as ledger:
        ledger.gates.declare("two\nlines", interval_ms=1_000, source="kafka", estimator="pid")
    assert httpx.get(f"{shared.address}/gate/two%0Alines").status_code == 200


def test_two_operators_are_told_apart(shared: Shared) -> None:
    with Ledger.open(shared.ledger) as ledger:
        key = add_failure(ledger)
        for who in ("Ada", "Grace"):
            with httpx.Client(base_url=shared.address) as client:
                sign_in(client, who=who)
                token = form_token(client.get(f"/batch/{key}").text)
                data = {"gate": "orders", "key": key, "why": "again", "form_token": token}
                assert client.post("/act/retry", data=data).status_code == 303
        assert [each.by for each in ledger.operator_limits.history(None, 2)] == ["Grace", "Ada"]


def test_metrics_are_there_too_and_say_when_the_ledger_is_away(
    serve: Serve, url: str, tmp_path: Path
) -> None:
    address = serve(url)
    answer = httpx.get(f"{address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'headrace_lag_records{gate="orders"}' in answer.text
    assert "headrace_ledger_up 1.0" in answer.text
    asked = {"accept": "application/openmetrics-text"}
    openmetrics = httpx.get(f"{address}/metrics?per-partition", headers=asked)
    assert openmetrics.text.endswith("# EOF\n")
    for file in tmp_path.glob("ledger.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    assert "headrace_ledger_up 0.0" in httpx.get(f"{address}/metrics").text
