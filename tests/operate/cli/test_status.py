"""``headrace status``: what it prints, and how it ends."""

import os
import pty
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from tests.flow.samples import state_of_stage
from tests.operate.cli.commands import COMMAND, run
from tests.operate.cli.conftest import add_gate
from tests.operate.cli.outcomes import rows, told
from tests.services.waiting import wait_until

import headrace
from headrace.core.system import this_process
from headrace.core.timing import wall_clock_ms
from headrace.flow.signal_codec import encode
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import RateSample
from headrace.operate.status.snapshot import GateSnapshot


@pytest.mark.integration
def test_the_ledger_may_be_named_by_the_environment_or_be_the_one_in_this_folder(
    ledger_url: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    by_name = run("status", folder=elsewhere, variables={"HEADRACE_LEDGER": ledger_url})
    by_folder = run("status", folder=tmp_path)
    for done in (by_name, by_folder):
        assert (done.returncode, done.stderr) == (0, "")
        assert "orders · kafka" in done.stdout
        assert "\x1b" not in done.stdout


def test_json_is_one_object_per_gate_and_line_in_the_documented_shape(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        add_gate(ledger, "payments")
        ledger.gates.declare("new", interval_ms=500, source="kafka", estimator="pid")
    new, orders, payments = rows(ledger_url, "status")
    assert [each["gate"] for each in (new, orders, payments)] == ["new", "orders", "payments"]
    documented = (GateSnapshot.__doc__ or "").partition("Attributes:")[2]
    for field in fields(GateSnapshot):
        assert field.name in orders
        assert f"{field.name}" in documented
    assert orders.keys() == new.keys() == {field.name for field in fields(GateSnapshot)}
    assert (orders["state"], orders["lag"], orders["left_over"]) == ("steady", 90, 70)
    (batch,) = orders["batches"]
    assert batch.keys() == {"id", "status", "records", "duration_ms", "planned_ms", "lost", "key"}
    assert (batch["id"], batch["status"], batch["records"]) == (7, "success", 20)
    assert orders["partitions"] == [
        {"topic": "orders", "partition": 0, "lag": 90, "admitted": 20, "reason": "rate"}
    ]
    assert (new["state"], new["lag"], new["batches"]) == ("new", None, [])


def test_a_query_that_ended_without_a_finish_is_dead_and_what_acts_comes_first(
    ledger_url: str,
) -> None:
    with Ledger.open(ledger_url) as ledger:
        owner = f"{this_process().rpartition(':')[0]}:1/run"  # this number, but begun earlier
        claim = GateClaim("orders", owner, None, None, "process 71", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 30_000) is None
        (batch,) = ledger.batches.newest("orders", 1)
    (gate,) = rows(ledger_url, "status")
    assert gate["state"] == "dead"
    assert gate["query"]["ended_ms"] is not None
    (need,) = gate["needs"]
    assert need["urgency"] == 0
    assert need["sentence"].startswith("Dead: its process has ended without a word")
    assert need["command"] == f"headrace batches {batch.batch_key[:8]}"
    assert "Dead: its process has ended" in told(ledger_url, "status").splitlines()[1]
    told(ledger_url, need["command"].removeprefix("headrace "))


def test_a_process_that_gives_no_sign_of_life_and_is_not_known_to_be_gone_is_silent(
    ledger_url: str,
) -> None:
    with Ledger.open(ledger_url, database_clock=lambda: wall_clock_ms() - 60_000) as ledger:
        claim = GateClaim("orders", "elsewhere", None, None, "process 71", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 30_000) is None
    (gate,) = rows(ledger_url, "status")
    assert gate["state"] == "silent"
    assert gate["needs"][0]["kind"] == "silent"
    assert "its process is frozen or gone" in told(ledger_url, "status")


def test_a_gate_s_status_in_python_is_that_of_the_command(ledger_url: str) -> None:
    gate = headrace.Gate("orders", interval="1 second", ledger=ledger_url)
    status = gate.status()
    assert isinstance(status, headrace.GateSnapshot)
    (printed,) = rows(ledger_url, "status")
    assert (status.gate, status.lag, status.left_over) == ("orders", 90, 70)
    assert printed["lag"] == status.lag
    unknown = headrace.Gate("unheard", interval="1 second", ledger=ledger_url)
    with pytest.raises(headrace.OptionError, match="'unheard' is not declared"):
        unknown.status()


def test_one_gate_of_several_is_shown_alone_and_all_of_them_in_a_table(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        add_gate(ledger, "payments")
    alone = told(ledger_url, "status payments")
    table = told(ledger_url, "status")
    assert "payments · kafka" in alone
    assert "orders · kafka" not in alone
    assert "headrace status GATE" in table
    assert "orders" in table
    assert "payments" in table


def test_status_and_batches_have_the_same_number_key_and_time_of_a_batch(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        (batch,) = ledger.batches.newest("orders", 1)
        key, now_ms = batch.batch_key, batch.created_time_ms + 4_000
        ledger.rates.report(
            key, 7, now_ms, RateSample("orders", now_ms, 9.0, 20, 3_210, 0, batch_key=key)
        )
    for command in ("status", "batches"):
        row = next(each for each in told(ledger_url, command).splitlines() if "#7" in each)
        assert key[:8] in row
        assert "3.21 s" in row
    assert re.search(r"took +3\.21 s", told(ledger_url, f"batches {key}"))


@pytest.mark.parametrize("width", range(60, 140, 7))
def test_a_fact_is_whole_or_left_out(ledger_url: str, width: int) -> None:
    told(ledger_url, "limit 200 --why 'a sink that has a quota' --by ops")
    shown = told(ledger_url, "status", width=width)
    (fact,) = [each for each in shown.splitlines() if "last batch" in each]
    facts = [each.strip() for each in fact.strip("│ ").partition("20  ")[2].split("·")]
    assert facts[0] == "records"
    assert all(re.fullmatch("limited by: rate|planned .* ago", each) for each in facts[1:])


def test_a_ledger_without_a_gate_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    Ledger.open(url).close()
    assert "no gate yet" in told(url, "status")


def test_stages_follow_the_gates_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.gates.declare("clicks.a", interval_ms=1000, source="journal", estimator="{}")
        for stage, throttled_by in [("a", "b"), ("b", "c"), ("c", None)]:
            state = state_of_stage(stage, throttled_by, queue_bytes=1_250_000)
            ledger.signals.publish("clicks", stage, encode(state))
        ledger.signals.publish("clicks", "forged", '{"stage": "forged"}')
    gate, *stages = rows(url, "status")
    assert gate["gate"] == "clicks.a"
    assert [(each["stage"], each["state"], each["throttled_by"]) for each in stages] == [
        ("a", "throttled", "b"),
        ("b", "throttled", "c"),
        ("c", "bottleneck", None),
    ]
    assert stages[0]["rate_limit_per_s"] == 250.5
    assert "clicks.c: This stage throttles the others" in told(url, "status")
    assert "This stage throttles" not in told(url, "status clicks.a")


@pytest.mark.integration
def test_a_command_that_cannot_be_understood_ends_with_2(tmp_path: Path) -> None:
    assert run("status", "--lodger", "x", folder=tmp_path).returncode == 2


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "drawn"),
    [
        ("status", b"every 1.00 s"),
        ("batches", b"limited by"),
        ("failures", b"Nothing is unresolved"),
        ("dead-letters list", b"There is no dead letter"),
    ],
)
def test_watching_draws_in_the_terminal_until_ctrl_c(
    command: str, drawn: bytes, ledger_url: str, tmp_path: Path
) -> None:
    terminal, inside = pty.openpty()
    os.set_blocking(terminal, False)
    process = subprocess.Popen(
        [*COMMAND, *command.split(), "--watch", "--ledger", ledger_url],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=inside,
        stdout=inside,
        stderr=subprocess.PIPE,
    )
    shown = bytearray()

    def has_ended() -> bool:
        """Whether it has, with all that it drew read: it waits for whoever looks at it."""
        ended = process.poll() is not None
        with suppress(BlockingIOError):
            shown.extend(os.read(terminal, 65_536))
        return ended

    try:
        wait_until(lambda: has_ended() or shown.count(drawn) >= 2)
        process.send_signal(signal.SIGINT)
        wait_until(has_ended)
    finally:
        process.kill()
        _, said = process.communicate()
        os.close(terminal)
        os.close(inside)
    assert process.returncode == 130
    assert said == b""
