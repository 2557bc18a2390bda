"""The command line as a whole: what is listed, and what is imported for it."""

import io
import re
import subprocess
import sys

import pytest
from tests.operate.cli.outcomes import Shop, invoke
from typer.testing import CliRunner

import headrace
from headrace.operate.cli import main
from headrace.operate.cli.app import COMMANDS, GROUPS, app


def test_the_help_lists_every_command_with_what_it_does() -> None:
    told = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["--help"])
    assert told.exit_code == 0
    listed = told.stdout.partition("\nOptions:")[0]
    assert re.findall(r"^(\w.*):$", listed, re.MULTILINE) == list(GROUPS)
    assert re.findall(r"^  (\S+)  +\w.*\.$", listed, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_help_is_wider_than_its_terminal_or_names_a_type(width: int) -> None:
    for command in COMMANDS:
        told = CliRunner(env={"COLUMNS": str(width)}).invoke(app, [command, "--help"]).stdout
        described = told.partition("Example")[0]
        assert max(map(len, described.splitlines())) <= width, command
        assert not re.search(r"<\w+>|\bTEXT\b|\[\[|Whose\.", told), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own_and_nothing_of_typers(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"])
    assert told.exit_code == 0
    assert f" {command} " in told.stdout
    assert "completion" not in told.stdout


@pytest.fixture
def shop_url(shop: Shop) -> str:
    return shop.url


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "ascii"])
@pytest.mark.parametrize("command", ["status", "status orders", "batches orders"])
def test_what_the_output_has_no_character_for_is_replaced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, encoding: str, command: str
) -> None:
    # `status` would ask brokers that the shop names, and wait for them.
    is_status = command.startswith("status")
    url = request.getfixturevalue("ledger_url" if is_status else "shop_url")
    expected = invoke(url, *command.split())
    assert not expected.stdout.isascii()
    monkeypatch.setenv("HEADRACE_LEDGER", url)
    monkeypatch.setattr(sys, "argv", ["headrace", *command.split()])
    written = io.TextIOWrapper(io.BytesIO(), encoding)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "stdout", written)
        main()
    assert ended.value.code == expected.exit_code
    written.seek(0)
    assert "orders" in written.read()


def test_a_command_that_there_is_not_is_refused_with_the_one_that_was_meant() -> None:
    told = CliRunner().invoke(app, ["verfiy"])
    assert told.exit_code == 2
    assert "No such command 'verfiy'. Did you mean 'verify'?" in told.output


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {headrace.__version__}\n")


@pytest.mark.integration
def test_a_command_is_run_without_the_others() -> None:
    heavy = ("pyarrow", "confluent_kafka", "pyspark", "prometheus_client", "headrace.receivers")
    for words, more in ((["--help"], ("rich", "sqlalchemy")), (["status", "--help"], ())):
        program = (
            "import sys; from headrace.operate.cli.app import app;"
            f" app({words}, standalone_mode=False);"
            f" print([m for m in {(*heavy, *more)} if m in sys.modules])"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines()[-1] == "[]"
