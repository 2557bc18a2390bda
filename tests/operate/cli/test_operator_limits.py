"""``headrace pause``, ``resume``, ``limit`` and ``drain``, and what ``headrace status`` says."""

import getpass
import json
from pathlib import Path

import pytest
from tests.operate.cli.commands import run
from tests.operate.cli.conftest import Complain, add_gate
from tests.operate.cli.outcomes import invoke
from tests.operate.cli.test_flows import SHOP

from headrace.gate.control.size_ceiling import SizeCeiling
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger


def test_a_pause_says_who_and_why_and_stays_until_it_is_resumed(ledger_url: str) -> None:
    paused = invoke(ledger_url, "pause", "orders", "--by", "ops", "--why", "sink migration")
    assert paused.exit_code == 0
    assert "orders: paused by ops: sink migration, since " in paused.output
    shown = invoke(ledger_url, "status", "orders").output
    assert "Paused by ops: sink migration, since " in shown
    gate = json.loads(invoke(ledger_url, "status", "--json").output)
    assert gate["state"] == "paused"
    assert gate["operator_limits"].startswith("paused by ops: sink migration, since ")
    resumed = invoke(ledger_url, "resume", "orders")
    assert "orders: under no limit and not paused; no query runs behind it now." in resumed.output
    with Ledger.open(ledger_url) as ledger:
        assert not ledger.operator_limits.of("orders").paused
        assert [each.by for each in ledger.operator_limits.history("orders")] == [
            getpass.getuser(),
            "ops",
        ]


def test_what_changes_nothing_says_so(ledger_url: str) -> None:
    for command in ("resume", "limit off"):
        said = invoke(ledger_url, *command.split(), "orders").output
        assert said == "orders: under no limit and not paused, as before.\n"
    invoke(ledger_url, "limit", "10", "orders", "--by", "ops")
    said = invoke(ledger_url, "resume", "orders").output
    assert said.startswith("orders: limited to 10 records/s by ops, since ")
    assert said.endswith(" UTC, as before.\n")


def test_several_gates_are_paused_at_once_or_none(ledger_url: str, complain: Complain) -> None:
    with Ledger.open(ledger_url) as ledger:
        add_gate(ledger, "clicks")
    assert invoke(ledger_url, "pause", "orders", "clicks").exit_code == 0
    assert "no gate 'unheard'" in complain(ledger_url, "resume", "orders", "unheard")
    with Ledger.open(ledger_url) as ledger:
        assert all(each.paused for each in ledger.operator_limits.all().values())


def test_the_only_gate_needs_no_name_and_of_several_one_is_named(
    ledger_url: str, complain: Complain
) -> None:
    for command in ("pause", "resume", "limit 200"):
        assert invoke(ledger_url, *command.split()).output.startswith("orders: ")
    alone = invoke(ledger_url, "why")
    assert alone.stderr == "Gate orders, the only gate of this ledger.\n"
    with Ledger.open(ledger_url) as ledger:
        add_gate(ledger, "clicks")
    accept = ("accept", "--records", "1", "--why", "known")
    for words in (("pause",), ("limit", "200"), ("retry",), ("why",), accept):
        said = complain(ledger_url, *words)
        assert "has several gates; name one: clicks, orders." in said


def test_a_limit_names_the_limit_that_it_replaces(ledger_url: str) -> None:
    first = invoke(ledger_url, "limit", "10", "orders", "--by", "ops", "--why", "quota").output
    assert "replaces" not in first
    second = invoke(ledger_url, "limit", "5", "orders", "--for", "2h").output
    assert (
        "; it replaces the limit of 10 records/s by ops: quota, which does not come back; "
    ) in second
    assert "replaces" not in invoke(ledger_url, "pause", "orders").output
    assert "replaces" not in invoke(ledger_url, "limit", "off", "orders").output


def test_a_limit_ends_by_itself_or_when_it_is_taken_off(ledger_url: str) -> None:
    limited = invoke(ledger_url, "limit", "200", "orders", "--for", "2h", "--json")
    operator_limits = json.loads(limited.output)
    assert operator_limits["limit"]["records_per_s"] == 200
    assert operator_limits["limit"]["until_ms"] - operator_limits["limit"]["time_ms"] in range(
        7_190_000, 7_200_001
    )
    assert not operator_limits["seen"]
    assert "limited to 200 records/s" in invoke(ledger_url, "status").output
    off = json.loads(invoke(ledger_url, "limit", "off", "orders", "--json").output)
    assert (off["limit"], off["described"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause", "orders", "--flow", "shop:orders"), "Gates and --flow are both named"),
        (("pause", "orders", "--by", ""), "The operator's name has 0 characters; give 1 to 100"),
        (("limit", "many", "orders"), "'many'; give a number of records/s above 0, or: off"),
        (("limit", "0", "orders"), "must be a finite number above 0"),
        (("limit", "off", "orders", "--for", "2h"), "leave --for out"),
        (("limit", "5", "orders", "--for", "2"), "a time with its unit"),
        (("limit", "5", "orders", "--for", "99999999 days"), "at most 3650 days, or leave"),
        (("limit", "5", "orders", "--for", "0s"), "at most 3650 days, or leave"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    ledger_url: str, complain: Complain, arguments: tuple[str, ...], said: str
) -> None:
    assert said in complain(ledger_url, *arguments)
    with Ledger.open(ledger_url) as ledger:
        assert ledger.operator_limits.history("orders") == ()


def test_a_drain_says_when_the_query_can_be_stopped(ledger_url: str) -> None:
    assert "there is nothing to stop" in invoke(ledger_url, "drain", "orders").output
    with Ledger.open(ledger_url) as ledger:
        claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 30_000) is None
    waits = invoke(ledger_url, "drain", "orders", "--timeout", "0s", "--json")
    assert waits.exit_code == 3
    state = json.loads(waits.output)
    assert (state["can_stop"], state["has_query"], state["running"]) == (False, True, 0)
    assert (
        "sees this at its next plan"
        in invoke(ledger_url, "drain", "orders", "--timeout", "0s").output
    )


@pytest.mark.nightly
def test_a_flow_is_paused_at_its_first_stages_and_resumed_in_all(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("headrace.db", "declared.db"))
    Ledger.open(f"sqlite:///{tmp_path}/headrace.db").close()  # the default, which is not meant
    with Ledger.open(f"sqlite:///{tmp_path}/declared.db") as ledger:
        unknown = run("pause", "--flow", "shop:orders", folder=tmp_path)
        assert unknown.returncode == 1
        assert "declared.db has no gate 'orders.parse'; the gates it has: none" in unknown.stderr
        for gate in ("orders.parse", "orders.store", "other"):
            add_gate(ledger, gate)

        def paused() -> list[str]:
            return [name for name, each in ledger.operator_limits.all().items() if each.paused]

        assert run("pause", "--flow", "shop:orders", folder=tmp_path).returncode == 0
        assert paused() == ["orders.parse"]
        ledger.operator_limits.drain("orders.store", "ops")
        assert run("resume", "--flow", "shop:orders", folder=tmp_path).returncode == 0
        assert ledger.operator_limits.of("orders.store").hold is None
        assert paused() == []
    shown = run("status", "--flow", "shop:orders", "--json", folder=tmp_path)
    assert [json.loads(line)["gate"] for line in shown.stdout.splitlines()] == [
        "orders.parse",
        "orders.store",
    ]
    named = run(
        "status", "--flow", "shop:orders", "--ledger", "sqlite:///other.db", folder=tmp_path
    )
    assert "other.db; leave --ledger out." in named.stderr


def test_a_ceiling_is_shown_and_lifted_with_who_and_why(
    ledger_url: str, complain: Complain
) -> None:
    with Ledger.open(ledger_url) as ledger:
        ceiling = SizeCeiling(250, 564)
        ledger.gates.change_ceiling("orders", None, ceiling.to_text())
    gate = json.loads(invoke(ledger_url, "status", "--json").output)
    assert gate["ceiling"] == "564 records at once failed, 250 passed"
    assert gate["ceiling_records"] == 262
    shown = invoke(ledger_url, "status", "orders").output
    assert "564 records at once failed, 250 passed" in shown
    wrong = complain(ledger_url, "limit", "no-ceiling", "orders", "--for", "2h")
    assert "--for is the duration of a limit" in wrong
    lifted = invoke(
        ledger_url, "limit", "no-ceiling", "orders", "--by", "ops", "--why", "a larger sink"
    )
    assert "orders: without a ceiling; no query runs behind it now." in lifted.output
    assert json.loads(invoke(ledger_url, "status", "--json").output)["ceiling"] is None
    with Ledger.open(ledger_url) as ledger:
        newest = ledger.operator_limits.history("orders", 1)[0]
    assert (newest.kind, newest.by, newest.why) == ("lift ceiling", "ops", "a larger sink")
