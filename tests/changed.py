"""``python -m tests.changed``: the tests of the packages that differ from the main branch.

A package is a house of ``src/headrace``, or a room of one that has rooms. For a package that
differs, or whose tests do, it runs what `make test` runs of it; for packages that import it
directly, the unit tests. Nearly every package is in the end imported by the command line, so all
tests of all importers would be most of `make test`.
Changes that are not committed count; what lies elsewhere, `make test` covers.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NO_TESTS: Final = 5
"""The exit status of pytest for a selection without a test."""

_PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile"),
    *("--no-loadscope-reorder", "--durations=10", "--durations-min=5"),
)
_ROOM: Final = r"(?:gate|operate)/[a-z_]+(?=/)|journal/receivers|[a-z_]+"
_PACKAGE: Final = re.compile(rf"(?:src/headrace|tests)/({_ROOM})(?:/|\.py$)")
_IMPORT: Final = re.compile(
    r"^\s*(?:from|import) headrace\.((?:gate|operate)\.[a-z_]+|journal\.receivers|[a-z_]+)",
    re.MULTILINE,
)


def changed_files(root: Path) -> list[str]:
    """The files that differ from the commit in which this branch left the main one.

    Raises:
        SystemExit: There is no main branch.
    """
    is_main = _git(root, "branch", "--show-current") == ["main"]
    branches = ["origin/main", "main"] if is_main else ["main", "origin/main"]
    for branch in branches:
        if base := _git(root, "merge-base", "HEAD", branch):
            new = _git(root, "ls-files", "--others", "--exclude-standard")
            return sorted({*_git(root, "diff", "--name-only", "--no-renames", base[0]), *new})
    raise SystemExit("There is no branch main or origin/main to compare with; git fetch one.")


def _git(root: Path, *arguments: str) -> list[str]:
    """The lines that a command of git writes; none if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=root, check=False, capture_output=True, text=True
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def packages_of(root: Path, files: Iterable[str]) -> set[str]:
    """The packages, and modules beside them, that these files or their tests belong to."""
    names = {found[1] for each in files if (found := _PACKAGE.match(each))}
    names = {each.removeprefix("test_") for each in names}
    return {
        name
        for name in names
        if _sources(root, name)
        or (root / f"tests/test_{name}.py").exists()
        or list(root.glob(f"tests/{name}/test_*.py"))
    }


def importers(root: Path, packages: set[str]) -> set[str]:
    """The other packages and modules that import one of these directly."""
    source = root / "src/headrace"
    files = [str(file.relative_to(root)) for file in source.rglob("*.py")]
    names = {found[1] for file in files if (found := _PACKAGE.match(file))} - {"__init__"}
    imported = {
        name: {
            package.replace(".", "/")
            for file in _sources(root, name)
            for package in _IMPORT.findall(file.read_text())
        }
        for name in names - packages
    }
    # What comes through a house's door may come from any of its rooms.
    houses = {package.partition("/")[0] for package in packages}
    return {name for name, others in imported.items() if others & (packages | houses)}


def _sources(root: Path, name: str) -> list[Path]:
    place = root / "src/headrace" / name
    return [*place.rglob("*.py"), *filter(Path.exists, [place.with_suffix(".py")])]


def _tests(root: Path, name: str) -> list[str]:
    """The arguments of pytest for the tests and the doctests of a package."""
    places = [
        *(f"tests/{name}", f"tests/test_{name}.py"),
        *(f"src/headrace/{name}", f"src/headrace/{name}.py"),
    ]
    return [each for each in places if (root / each).exists()]


def run(packages: set[str], tiers: str, arguments: Sequence[str]) -> int:
    """Run the tests of packages, of these tiers; answers pytest's exit status."""
    paths = [path for name in sorted(packages) for path in _tests(ROOT, name)]
    sys.stdout.write(f"{', '.join(sorted(packages))}: {tiers}\n")
    sys.stdout.flush()
    done = subprocess.run([*_PYTEST, "-m", tiers, *paths, *arguments], cwd=ROOT, check=False)
    return 0 if done.returncode == NO_TESTS else done.returncode


def main() -> int:
    """Run them; the exit status is 0 if all pass, and if there are none."""
    packages = packages_of(ROOT, changed_files(ROOT))
    if not packages:
        sys.stdout.write("No package of src/headrace differs from main, nor do its tests.\n")
        return 0
    others = importers(ROOT, packages)
    status = run(packages, "not nightly and not soak", sys.argv[1:])
    if others and status == 0:
        status = run(others, "unit and not nightly and not soak", sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
