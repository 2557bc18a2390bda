"""Commands with no right but to read a ledger tell everything and change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench.history import fill
from tests.gate.ledger.conftest import Ordinary
from tests.gate.ledger.samples import a_batch
from tests.operate.cli.outcomes import invoke
from tests.services.postgresql import NewUrl, url_as_new_role

from headrace.errors import LedgerError
from headrace.gate.ledger.ledger import Ledger

COMMANDS = {
    "status": ["status", "--json"],
    "batches": ["batches", "--json", "--limit=1000"],
    "failures": ["failures", "--json", "--limit=1000"],
    "verify": ["verify", "--json"],
    "dead-letters": ["dead-letters", "list", "--json", "--limit=1000"],
}


@pytest.fixture(params=COMMANDS.values(), ids=list(COMMANDS))
def command(request: pytest.FixtureRequest) -> list[str]:
    arguments: list[str] = request.param
    return arguments


def with_a_history(url: str) -> str:
    fill(url, 100, 1_700_000_000_000, isolated_every=10)
    return url


def told(url: str, command: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the output of a command."""
    result = invoke(url, *command)
    values = [json.loads(line) for line in result.stdout.splitlines()]
    for each in values:
        for name in ("time_ms", "lag_age_ms"):  # of asking
            each.pop(name, None)
    return result.exit_code, values


@pytest.fixture(scope="module")
def owners_url(new_postgresql_url: NewUrl) -> str:
    return with_a_history(new_postgresql_url())


@pytest.fixture(scope="module")
def readers_url(owners_url: str, postgresql: str) -> str:
    """For a role that may only ``SELECT``."""
    return url_as_new_role(owners_url, postgresql, "SELECT")


def test_the_right_to_select_is_enough_for_a_command(
    owners_url: str, readers_url: str, command: list[str]
) -> None:
    exit_code, values = told(owners_url, command)
    assert values
    assert told(readers_url, command) == (exit_code, values)


def test_the_right_to_select_is_not_enough_to_write(readers_url: str) -> None:
    with (
        Ledger.open(readers_url) as writer,
        pytest.raises(LedgerError, match="cannot be used: permission denied for table"),
    ):
        writer.batches.begin(a_batch(gate="bench"))


@pytest.mark.integration
def test_a_file_that_cannot_be_written_is_enough_for_a_command(
    open_folder: Path, ordinary: Ordinary, command: list[str]
) -> None:
    url = with_a_history(f"sqlite:///{open_folder}/ledger.db")
    expected = told(url, command)
    (open_folder / "ledger.db").chmod(0o444)
    open_folder.chmod(0o555)
    with ordinary():
        assert told(url, command) == expected
    assert [file.name for file in open_folder.iterdir()] == ["ledger.db"]
