"""``make changed`` finds the packages that differ, on a repository that is made for it."""

import subprocess
from pathlib import Path

import pytest
from tests.changed import changed_files, importers, packages_of

pytestmark = pytest.mark.integration

FILES = {
    "README.md": "",
    "src/headrace/errors.py": "",
    "src/headrace/gate/control/limits.py": "from headrace.errors import Error\n",
    "src/headrace/gate/ledger/gates.py": (
        "def use():\n    from headrace.gate.control import limits\n"
    ),
    "src/headrace/operate/cli/app.py": "import headrace.gate.ledger\n",
    "tests/gate/control/test_limits.py": "",
    "tests/services/kafka.py": "",
}


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A branch that begins at main."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message=Begin")
    git(tmp_path, "checkout", "-b", "topic")
    return tmp_path


def change(repository: Path, name: str) -> None:
    with (repository / name).open("a") as file:
        file.write("# changed\n")


def test_commits_changes_and_new_files_count(repository: Path) -> None:
    assert changed_files(repository) == []
    change(repository, "src/headrace/errors.py")
    git(repository, "commit", "--all", "--message=Change")
    (repository / "src/headrace/gate/control/limits.py").unlink()
    change(repository, "src/headrace/operate/cli/new.py")
    names = [
        "src/headrace/errors.py",
        "src/headrace/gate/control/limits.py",
        "src/headrace/operate/cli/new.py",
    ]
    assert changed_files(repository) == names
    assert packages_of(repository, names) == {
        "operate/cli",
        "gate/control",
        "errors",
    }


def test_what_main_has_changed_since_does_not_count(repository: Path) -> None:
    git(repository, "checkout", "main")
    change(repository, "src/headrace/operate/cli/app.py")
    git(repository, "commit", "--all", "--message=Elsewhere")
    git(repository, "checkout", "topic")
    assert changed_files(repository) == []


def test_a_package_without_a_main_branch_is_compared_with_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=topic")
    with pytest.raises(SystemExit, match=r"no branch main .* git fetch one\.$"):
        changed_files(tmp_path)


def test_a_package_is_known_by_its_source_and_by_its_tests(repository: Path) -> None:
    files = ["README.md", "src/headrace/errors.py", "tests/gate/control/test_limits.py"]
    assert packages_of(repository, files) == {"errors", "gate/control"}


def test_those_that_import_it_directly_are_its_importers(repository: Path) -> None:
    assert importers(repository, {"gate/control"}) == {"gate/ledger"}
    assert importers(repository, {"errors"}) == {"gate/control"}
    assert importers(repository, {"gate/control", "gate/ledger"}) == {"operate/cli"}
