"""The command line as a whole: what is listed, and what is imported for it."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.app import COMMANDS, app


def test_the_help_lists_every_command_with_what_it_does() -> None:
    told = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["--help"])
    assert told.exit_code == 0
    lines = [line.strip("│ ").split(maxsplit=1) for line in told.stdout.splitlines()]
    described = {words[0]: words[1] for words in lines if len(words) == 2}
    assert [name for name in described if name in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own_and_nothing_of_typers(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"])
    assert told.exit_code == 0
    assert f" {command} " in told.stdout
    assert "completion" not in told.stdout


def test_a_command_that_there_is_not_is_refused_with_the_one_that_was_meant() -> None:
    told = CliRunner().invoke(app, ["verfiy"])
    assert told.exit_code == 2
    assert "No such command 'verfiy'. Did you mean 'verify'?" in told.output


def test_a_command_that_is_gone_says_what_to_do_instead() -> None:
    told = CliRunner().invoke(app, ["simulate", "five.toml"])
    assert str(told.exception).startswith("`headrace simulate` is gone: try a change on a copy")
    told = CliRunner().invoke(app, ["flow", "show", "shop:orders", "--svg", "orders.svg"])
    assert str(told.exception).startswith(
        "`headrace flow show --svg` is gone: `headrace flow show`"
    )


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {headrace.__version__}\n")


@pytest.mark.integration
def test_a_command_is_run_without_the_others() -> None:
    program = (
        "import sys; from headrace.cli.app import app; app(['status', '--help'], standalone_mode="
        "False); print([m for m in ('pyarrow', 'confluent_kafka', 'pyspark') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
