"""Functions that the command line names."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.errors import OptionError
from headrace.operate.cli.shared_options import load_function, load_handler

JOBS = """
class Shop:
    @staticmethod
    def handle(df, batch):
        return df, batch

async def wait(df, batch):
    pass

def wait_later(df, batch):
    return wait(df, batch)

def double(df):
    return df * 2

PRICE = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a few modules; nothing of them stays."""
    (tmp_path / "jobs_here.py").write_text(JOBS)
    (tmp_path / "jobs_broken.py").write_text("raise ValueError('not\\nthis way')")
    (tmp_path / "jobs_odd.py").write_text("def handle(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("jobs_")]:
        del sys.modules[name]


def test_modules_of_the_working_directory_are_found() -> None:
    assert load_function("--handler", "jobs_here:double")(2) == 4
    assert load_function("--handler", "jobs_here:Shop.handle")(1, 2) == (1, 2)


def test_a_handler_is_called_with_what_was_derived() -> None:
    handled: list[Any] = []
    sys.modules.pop("jobs_here", None)
    module = sys.modules[load_function("--handler", "jobs_here:double").__module__]
    module.__dict__["keep"] = lambda df, batch: handled.append((df, batch))
    load_handler("jobs_here:keep", None)(cast(Any, 3), cast(Any, "batch"))
    load_handler("jobs_here:keep", "jobs_here:double")(cast(Any, 3), cast(Any, "batch"))
    assert handled == [(3, "batch"), (6, "batch")]


def test_a_handler_that_nobody_would_wait_for_is_refused() -> None:
    with pytest.raises(OptionError, match="an async function: calling it does not run its code"):
        load_handler("jobs_here:wait", None)
    with pytest.raises(OptionError, match="so the batch counts as not written; write a plain"):
        load_handler("jobs_here:wait_later", None)(cast(Any, 3), cast(Any, "batch"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jobs_here", "write module:function"),
        ("jobs_here:", "write module:function"),
        (":double", "write module:function"),
        ("jobs_here.py:double", "cannot be imported"),
        ("./jobs_here:double", "write module:function"),
        ("jobs_missing:double", "No module named 'jobs_missing'"),
        ("jobs_broken:double", "ValueError: not this way"),
        ("jobs_odd:handle", "SyntaxError"),
        ("jobs_here:triple", "has no 'triple'"),
        ("jobs_here:Shop.sell", "has no 'Shop.sell'"),
        ("jobs_here:PRICE", "is of type int and cannot be called"),
    ],
)
def test_what_cannot_be_called_is_told_in_one_line(name: str, said: str) -> None:
    with pytest.raises(OptionError) as error:
        load_function("--transform", name)
    assert str(error.value).startswith(f"--transform is {name!r}")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
