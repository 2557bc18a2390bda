"""Defects that are planted are found, each by the tests of its row.

The quick tests see that each row still fits the source; the long one (``make soak``) plants them,
as ``make planted`` does.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.planted.__main__ import main
from tests.planted.plant import ROOT, SOURCE, Planted, outcome_from, outcome_of, plant, report
from tests.planted.table import DEFECTS, chosen

PACKAGES = {
    path.name
    for path in (SOURCE / "headrace").iterdir()
    if path.is_dir() and any(path.glob("*.py"))
}

HARMLESS = Planted(
    "a comment",
    "core/timing.py",
    "import time\n",
    "import time  # see\n",
    "tests/core/test_stop.py",
)
UNTESTED = Planted(
    "a comment", "core/timing.py", "import time\n", "\nimport time\n", "tests/none.py"
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.what)
def test_each_defect_is_a_change_of_a_place_that_is_there_once(
    defect: Planted, tmp_path: Path
) -> None:
    module = Path("headrace") / defect.module
    (tmp_path / module).parent.mkdir(parents=True)
    shutil.copyfile(SOURCE / module, tmp_path / module)
    plant(defect, tmp_path)
    compile((tmp_path / module).read_text(), str(module), "exec")
    assert all((ROOT / test).exists() for test in defect.tests.split())


def test_each_defect_has_a_name_of_its_own() -> None:
    assert [
        what for what, number in Counter(each.what for each in DEFECTS).items() if number > 1
    ] == []


def test_every_package_has_a_defect() -> None:
    assert {defect.package for defect in DEFECTS} == PACKAGES


def test_a_word_chooses_the_rows_that_have_it() -> None:
    assert {defect.package for defect in chosen("KAFKA/")} >= {"kafka"}
    assert chosen("no row has this") == []


def test_a_word_that_no_row_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["-k", "no row has this"])
    assert "no row has this" in capsys.readouterr().err


@pytest.mark.integration
def test_what_is_found_is_told_from_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome_of(HARMLESS, tmp_path).by is None
    assert not report([UNTESTED])
    assert "the tests cannot be run (status 4)" in capsys.readouterr().out


BEGUN = "tests/core/test_stop.py::test_one PASSED [ 50%]\ntests/core/test_stop.py::test_two "


@pytest.mark.parametrize(
    ("status", "log", "by", "hangs"),
    [
        (1, "FAILED tests/a.py::test_b[x y] - assert 1 == 2\n", "tests/a.py::test_b[x y]", False),
        (1, "ERROR    x:x.py:1 a log\nERROR tests/a.py::test_b\n", "tests/a.py::test_b", False),
        (None, BEGUN, "tests/core/test_stop.py::test_two", True),
        (1, f"{BEGUN}\n++++ Timeout ++++\n", "tests/core/test_stop.py::test_two", True),
        (None, "collecting ...", None, False),
        (2, "ERROR tests/a.py\n", None, False),
    ],
)
def test_what_found_a_defect_is_what_failed_or_hangs(
    status: int | None, log: str, by: str | None, *, hangs: bool
) -> None:
    outcome = outcome_from(status, log, 1.5)
    assert (outcome.by, outcome.hangs) == (by, hangs)
    assert bool(outcome.trouble) == (by is None)


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_all_defects_are_found() -> None:
    assert main([]) == 0
