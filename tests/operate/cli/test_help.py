"""Each command has ``-h``, examples that can be run, completion, and known exit statuses."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from tests.docs.pages import ROOT
from typer.testing import CliRunner

from headrace.operate.cli.app import EXAMPLES, app
from headrace.operate.cli.exits import ExitStatus


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group, by its words after ``headrace``."""

    def walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name in getattr(command, "commands", ()):
            yield from walk(f"{words} {name}".strip(), command.get_command(None, name))

    yield from walk("", typer.main.get_command(app))


COMMANDS = dict(commands())


def test_every_command_has_examples_and_no_other() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


@pytest.mark.integration
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words or "headrace")
def test_help_is_asked_for_in_two_ways_and_ends_with_the_examples(words: str) -> None:
    runner = CliRunner(env={"COLUMNS": "120"})
    told, short = (runner.invoke(app, [*words.split(), each]) for each in ("--help", "-h"))
    assert (told.exit_code, short.exit_code, short.stdout) == (0, 0, told.stdout)
    for example in EXAMPLES[words]:
        assert example in told.stdout


@pytest.mark.parametrize("example", [each for some in EXAMPLES.values() for each in some])
def test_an_example_can_be_understood(example: str) -> None:
    program, *words = shlex.split(example)
    assert program == "headrace"
    command, context = COMMANDS[""], None
    while True:
        context = command.make_context("headrace", words, parent=context)
        if not hasattr(command, "commands"):
            return
        _, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )


def test_the_exit_statuses_are_one_table() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    table = page.partition("## Exit statuses")[2].partition("##")[0]
    assert {int(found) for found in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {
        *ExitStatus
    }


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words or "headrace")
def test_a_command_names_exit_statuses_of_that_table(words: str) -> None:
    named = {int(each) for each in re.findall(r"Exit status (\d+)", COMMANDS[words].help or "")}
    assert named <= {*ExitStatus}


def test_a_shell_completes_commands_and_the_gates_of_the_ledger(ledger_url: str) -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        env = {"_HEADRACE_COMPLETE": "complete_bash", "HEADRACE_LEDGER": ledger_url, **words}
        return CliRunner(env=env).invoke(app, [], prog_name="headrace").stdout.split()

    assert completed("headrace stat") == ["status"]
    assert completed("headrace why o") == ["orders"]
    assert completed("headrace batches ") == ["orders"]
    assert completed("headrace pause x") == []
