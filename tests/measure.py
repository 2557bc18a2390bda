"""Measures of the source: its size, its value classes, its sentences, and its circles of imports.

`make measure` prints them, beside the ceilings of ``budget.toml`` (`tests/budget.py`).
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
TESTS: Final = ROOT / "tests"

MOST_LINES: Final = 50
"""Lines of a function beyond which it does not fit on a screen."""

MOST_PARAMETERS: Final = 8
"""Parameters of a constructor beyond which a value of its own is missing."""

FILLERS: Final = ("What", "Who", "Whoever", "Where", "How", "Of")
"""First words of a sentence without a noun; Whether is left out, for a boolean begins with it."""

_VALUES: Final = {"dataclass", "NamedTuple", "TypedDict"}
_SENTENCE: Final = re.compile(r"(?<=[.:])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Module:
    """One module of the source, parsed."""

    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Name of the module's package: the second part of its name."""
        return self.name.split(".")[1] if "." in self.name else ""


@cache
def modules(source: Path = SOURCE) -> dict[str, Module]:
    """Return every module under the source folder by its dotted name."""
    result = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise SystemExit(
                f"{path}:{error.lineno}: {error.msg}; nothing is measured until it parses."
            ) from None
        result[name] = Module(name, text, tree)
    return result


def statements(module: Module) -> int:
    """Return the number of statements, docstrings apart."""
    every = sum(isinstance(node, ast.stmt) for node in ast.walk(module.tree))
    return every - sum(
        ast.get_docstring(node, clean=False) is not None for node in _documented(module)
    )


def docstring_lines(module: Module) -> int:
    """Return the lines of all docstrings, with those of their quotes."""
    texts = [ast.get_docstring(node, clean=False) for node in _documented(module)]
    return sum(text.count("\n") + 1 for text in texts if text is not None)


def enums(module: Module) -> dict[str, int]:
    """Return the number of members of each enum."""
    return {
        node.name: sum(isinstance(statement, ast.Assign) for statement in node.body)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and any(base.endswith(("Enum", "Flag")) for base in _marks(node))
    }


def imports(module: Module, names: set[str]) -> set[str]:
    """Return the project's modules that a module imports; not those for type checkers alone."""
    result: set[str] = set()
    for node in _nodes(module.tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                result.add(inner if inner in names else node.module)
    return (result & names) - {module.name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected groups of more than one node, each sorted (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph)))
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def import_circles(source: Path = SOURCE) -> list[list[str]]:
    """Return the circles between modules, imports within functions included."""
    every = modules(source)
    return circles({name: imports(module, set(every)) for name, module in every.items()})


def long_functions(module: Module) -> list[str]:
    """Return the functions that are longer than a screen, without their docstrings."""
    result = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
            if lines > MOST_LINES and not _is_command(node):
                result.append(f"{module.name}.{node.name}: {lines} lines")
    return result


def wide_constructors(module: Module) -> list[str]:
    """Return the constructors with more parameters than a reader keeps in mind."""
    result = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            count = len(node.args.args) + len(node.args.kwonlyargs) - 1
            if count > MOST_PARAMETERS:
                result.append(f"{module.name}:{node.lineno}: {count} parameters")
    return result


def value_classes(module: Module) -> dict[str, int]:
    """Return the number of fields of each dataclass, named tuple and typed dictionary."""
    return {
        node.name: sum(isinstance(each, ast.AnnAssign) for each in node.body)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and _VALUES & set(_marks(node))
    }


def sentences(module: Module) -> list[str]:
    """Return the sentences of all docstrings, the lists of arguments left out."""
    result: list[str] = []
    for node in _documented(module):
        for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
            if not re.match(r"(Args|Attributes|Returns|Raises|Yields):", paragraph):
                result += _SENTENCE.split(" ".join(paragraph.split()))
    return [each for each in result if each]


def flags() -> list[str]:
    """Return the options of all commands; one that several commands have is there as often."""
    from headrace.cli.app import app

    def of(command: Any) -> Iterator[str]:
        yield from (each.opts[0] for each in command.params if each.param_type_name == "option")
        for name in getattr(command, "commands", ()):
            yield from of(command.get_command(None, name))

    return list(of(get_command(app)))


def table(source: Path = SOURCE) -> list[tuple[str, str]]:
    """Return the measures that have no ceiling, each with its value."""
    every = modules(source)
    spoken = [sentence for module in every.values() for sentence in sentences(module)]
    fillers = sum(sentence.split()[0] in FILLERS for sentence in spoken)
    values = [value_classes(module) for module in every.values()]
    long = sum(len(long_functions(module)) for module in every.values())
    wide = sum(len(wide_constructors(module)) for module in every.values())
    return [
        ("fields of value classes", f"{sum(sum(fields.values()) for fields in values):,}"),
        (f"sentences that begin with {', '.join(FILLERS)}", f"{fillers / len(spoken):.1%}"),
        ("circles of imports", f"{len(import_circles(source))}"),
        (f"functions over {MOST_LINES} lines", f"{long}"),
        (f"constructors over {MOST_PARAMETERS} parameters", f"{wide}"),
    ]


def _documented(
    module: Module,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield what can have a docstring: the module, and its classes and functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is a command of Typer's, whose parameters are its options."""
    types = [ast.unparse(each.annotation) for each in _parameters(node) if each.annotation]
    return any(each.startswith(("opt.", "Annotated[")) for each in types)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _marks(node: ast.ClassDef) -> Iterator[str]:
    for each in (*node.decorator_list, *node.bases):
        yield ast.unparse(each).split("(")[0].rpartition(".")[2]
