"""Headrace as a stranger installs it: the wheel that this project builds, in an empty environment.

The platform's Spark, if it has one, is used as it is. Each package has the version of
requirements.lock: the set-up has made wheels of them, and pip has Spark in its cache.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
import pytest
from tests.docs.pages import ROOT, blocks
from tests.docs.test_commands_run import SPARK
from tests.services.wheels import WHEELS
from tests.test_exports import HELP_OF_COMMANDS

import headrace
from headrace.core.system import EXTRAS
from headrace.operate.cli.app import COMMANDS, EXAMPLES
from headrace.operate.local import Java

SPARK_HOME: Final = Path(pyspark.__file__).parent
PLATFORM: Final = {
    "SPARK_HOME": str(SPARK_HOME),
    "PYTHONPATH": os.pathsep.join(map(str, sorted(SPARK_HOME.glob("python/lib/*.zip")))),
}
"""Environment variables of a platform that has a Spark of its own."""

_OURS: Final = {
    *("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV")
}
VARIABLES: Final = {name: value for name, value in os.environ.items() if name not in _OURS}
"""This environment's variables, without those that lead to its packages."""

NIGHTLY_EXTRAS: Final = frozenset({"dashboard", "json", "receivers", "zookeeper"})
"""Of those that differ in what they bring; `make soak` installs the others, too."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Installed:
    """An environment with Headrace, and nothing of this one.

    Attributes:
        bin: where its programs are.
        variables: all that its programs find in their environment.
    """

    bin: Path
    variables: Mapping[str, str]

    def run(self, program: str, *arguments: str, folder: Path) -> str:
        """Run a program; return its standard output; assert that it succeeds."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(
    scope="module",
    params=["receivers", pytest.param("receivers,spark", marks=pytest.mark.soak)],
)
def installed(
    request: pytest.FixtureRequest,
    wheel: Path,
    java: Java,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:
    """With these extras; without Spark's it is the platform's."""
    has_spark = "spark" in request.param
    folder = tmp_path_factory.mktemp("installed")
    bin_folder = install(wheel, request.param, folder, is_offline=not has_spark)
    platform = {} if has_spark else PLATFORM
    yield Installed(bin_folder, VARIABLES | SPARK | platform | {"JAVA_HOME": str(java.home)})


def install(wheel: Path, extras: str, folder: Path, *, is_offline: bool = False) -> Path:
    """Install Headrace with these extras in an empty environment; return its programs' folder."""
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^[\w.-]+==.*(?= \\$)", lock, re.MULTILINE)
    (folder / "locked.txt").write_text("\n".join(locked))
    env = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    pip = [sys.executable, "-m", "pip", f"--python={env}/bin/python", "install", "--quiet"]
    options = ["--no-input", "--constraint", str(folder / "locked.txt")]
    options += ["--find-links", str(WHEELS), *(["--no-index"] if is_offline else [])]
    subprocess.run([*pip, *options, f"{wheel}[{extras}]"], check=True)
    return env / "bin"


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        files = {name for name in packed.namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "headrace"
    made = {"__pycache__", ".pyc"}
    expected = {
        str(each.relative_to(package.parent))
        for each in package.rglob("*")
        if each.is_file() and not made & {each.suffix, each.parent.name}
    }
    assert files == expected
    assert "headrace/py.typed" in files


def test_the_ten_lines_of_the_readme_run(installed: Installed, tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "orders.py").write_text(block.text)
    # By its path, and nobody has said which Python Spark is to start.
    shown = installed.run("python", "orders.py", folder=tmp_path)
    assert len(shown.splitlines()) == len(list(tmp_path.glob("out/batch=*"))) > 1
    status = installed.run("headrace", "status", folder=tmp_path)
    assert re.search(r"Finished .*: 1,000 records processed, none left\.", status), status
    assert "1,000" in installed.run("headrace", "verify", folder=tmp_path)


@pytest.mark.soak  # tests/operate/cli/test_demo.py runs it from the checkout
def test_the_demo_runs_and_loses_nothing(installed: Installed, tmp_path: Path) -> None:
    shown = installed.run("headrace", "demo", "--seconds", "25", folder=tmp_path)
    assert re.search(r"arrived.*: none missing, none twice\.$", shown, re.MULTILINE), shown


def test_what_is_not_installed_is_named_with_its_extra(
    installed: Installed, tmp_path: Path
) -> None:
    code = """if True:
        from headrace.errors import SetupError
        from headrace.journal import Journal
        from headrace.gate import Ledger
        for use in (
            lambda: Ledger.open("postgresql://app@127.0.0.1:1/orders"),
            lambda: Journal.open("s3://bucket/orders"),
        ):
            try:
                use()
            except SetupError as error:
                print(error)
    """
    shown = installed.run("python", "-c", code, folder=tmp_path).splitlines()
    found = [re.search(r"'headrace\[([\w-]+)\]'\.$", line)[1] for line in shown]  # type: ignore[index]
    assert found == ["postgresql", "object-store"]


@pytest.mark.parametrize(
    "extra",
    [
        extra if extra in NIGHTLY_EXTRAS else pytest.param(extra, marks=pytest.mark.soak)
        for extra in sorted(EXTRAS)
    ],
)
def test_commands_and_names_are_listed_with_one_extra_alone(
    wheel: Path, extra: str, tmp_path: Path
) -> None:
    installed = Installed(install(wheel, extra, tmp_path), VARIABLES)
    listed = installed.run("headrace", "--help", folder=tmp_path)
    assert [name for name in COMMANDS if not re.search(rf"^\W+{name} ", listed, re.MULTILINE)] == []
    helps = installed.run("python", "-c", HELP_OF_COMMANDS, *EXAMPLES, folder=tmp_path)
    assert helps.count("Usage: headrace") == len(EXAMPLES)
    code = "from headrace import *; import headrace; print(*sorted({*dir()} & {*dir(headrace)}))"
    names = installed.run("python", "-c", code, folder=tmp_path).split()
    assert [name for name in names if not name.startswith("_")] == headrace.__all__
