"""An error about a missing package is one sentence that names the extra which installs it."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import headrace
from headrace.core.system import EXTRAS, needs_extra
from headrace.errors import SetupError
from headrace.gate.ledger.ledger import Ledger

PROJECT: Final = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())


def test_each_extra_installs_what_it_is_named_for() -> None:
    installed: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    missing = [
        (extra, package)
        for extra, packages in EXTRAS.items()
        for package in packages.values()
        if not any(each.startswith(package) for each in installed.get(extra, []))
    ]
    assert missing == []


def test_nothing_of_an_extra_is_installed_for_everybody() -> None:
    everybody = {each.partition(">=")[0] for each in PROJECT["project"]["dependencies"]}
    assert [name for packages in EXTRAS.values() for name in packages.values()] != []
    assert not everybody & {name for each in EXTRAS.values() for name in each.values()}


def of(name: str) -> Any:
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("extra", "module", "use"),
    [
        ("postgresql", "psycopg", lambda: Ledger.open("postgresql://app@127.0.0.1:1/orders")),
        ("receivers", "httptools", lambda: of("headrace.journal.receivers").HttpReceiver()),
        ("spark", "pyspark", lambda: getattr(headrace, "Gate")("orders")),  # noqa: B009  (no interval)
        ("spark", "pyspark.sql", lambda: of("headrace.testing").MemoryLog("a")),
    ],
)
def test_what_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, extra: str, module: str, use: Any
) -> None:
    again = ("headrace.gate", "headrace.journal.receivers", "headrace.testing")
    for name in [each for each in sys.modules if each.startswith(again)]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    sentence = rf"^[^.]+(\.\w+)? needs the package {package}, .*'headrace\[{extra}\]'\.$"
    with pytest.raises(SetupError, match=sentence):
        use()


def test_another_error_of_the_import_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needs_extra("json", "It"):
        importlib.import_module("no_such_module")


@pytest.mark.integration
def test_a_command_that_needs_spark_says_so_where_there_is_none() -> None:
    code = """if True:
        import sys
        sys.modules["pyspark"] = None
        sys.argv = ["headrace", "demo"]
        from headrace.operate.cli import main
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "headrace: This command needs the package pyspark, which is not installed; run: "
        "pip install 'headrace[spark]'.\n"
    )
