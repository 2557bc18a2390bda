"""The structure of the source: what `make lint` keeps at zero, and its sizes.

``python -m tests.structure`` fails where modules import each other in a circle, or where a function
is longer than a screen. ``python -m tests.structure sizes [REVISION]`` prints the lines of each
package of the source and of the tests, beside those of a revision; by default the last tag, or the
working tree alone. ``python -m tests.structure capabilities`` fills in the lines of each row of
CAPABILITIES.md.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
CAPABILITIES: Final = ROOT / "CAPABILITIES.md"

MOST_LINES: Final = 50
"""Lines of a function beyond which it does not fit on a screen; its docstring apart."""


def circle_of_imports() -> list[str]:
    """Return the modules of one circle of imports, those within functions too; empty for none."""
    graph = grimp.build_graph("headrace", exclude_type_checking_imports=False, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def long_functions(path: Path, text: str) -> Iterator[str]:
    """Find functions that are longer than a screen; a command's parameters are its options."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=False) or ""
        lines = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
        is_command = re.search(r"\b(opt\.|Annotated\[)", ast.unparse(node.args))
        if lines > MOST_LINES and not is_command:
            yield f"{path}:{node.lineno}: {node.name} has {lines} lines, more than {MOST_LINES}"


def check() -> None:
    """Exit with what is to be zero and is not."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    wrong = [line for path in sources for line in long_functions(path, path.read_text())]
    if circle := circle_of_imports():
        wrong.append(f"modules import each other in a circle: {' -> '.join(circle)}")
    if wrong:
        raise SystemExit("\n".join(wrong))


def sizes(revision: str | None) -> None:
    """Print the lines of each package, now and at a revision."""
    now = _lines_by_package(_git("ls-files", "*.py").split(), lambda path: _read(ROOT / path))
    if revision is None:
        revision = _git("describe", "--tags", "--abbrev=0", check=False).strip() or "HEAD"
    names = _git("ls-tree", "-r", "--name-only", revision).split()
    before = _lines_by_package(
        [name for name in names if name.endswith(".py")],
        lambda path: _git("show", f"{revision}:{path}"),
    )
    print(f"{'package':<40}{revision[:12]:>14}{'now':>10}")
    for name in sorted(now.keys() | before.keys()):
        print(f"{name:<40}{before[name]:>14,}{now[name]:>10,}")


def _lines_by_package(paths: list[str], read: Callable[[str], str]) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path in paths:
        tree, *below = path.split("/")
        if tree not in {"src", "tests"}:
            continue
        below = below[1:] if tree == "src" else below
        count = read(path).count("\n")
        lines[f"{tree} in all"] += count
        lines[f"{tree}/{below[0]}" if len(below) > 1 else f"{tree}, modules beside"] += count
    return lines


_ROW: Final = re.compile(r"(?P<row>\|[^|]+\|[^|]+\|(?P<files>[^|]+))\|[^|]*\|")


def capabilities() -> None:
    """Fill in the lines of source of each row: the fourth column, from the files of the third."""
    lines = CAPABILITIES.read_text(encoding="utf-8").splitlines()
    CAPABILITIES.write_text("\n".join(map(_filled, lines)) + "\n", encoding="utf-8")


def _filled(line: str) -> str:
    row = _ROW.match(line)
    patterns = re.findall(r"`([^`]+)`", row["files"]) if row else []
    if row is None or not patterns:
        return line
    count = 0
    for pattern in patterns:
        paths = [path for path in (ROOT / "src/headrace").glob(pattern) if path.is_file()]
        if not paths:
            raise SystemExit(f"CAPABILITIES.md names {pattern}, and there is no such file.")
        count += sum(_read(path).count("\n") for path in paths)
    return f"{row['row']}| {count:,} |{line[row.end() :]}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=check, capture_output=True, text=True
    )
    return done.stdout


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            check()
        case ["sizes", *revision]:
            sizes(revision[0] if revision else None)
        case ["capabilities"]:
            capabilities()
        case _:
            raise SystemExit(__doc__)
