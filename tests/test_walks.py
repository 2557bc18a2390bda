"""The five walks of ARCHITECTURE.md: each step names a file and what to read there."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/headrace"
_WALK = re.compile(r"^## The way of (.+?)$(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`( \()?", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A step of a walk.

    Attributes:
        file: The module, below ``src/headrace``.
        name: The function, method or class in it.
        comes_from_outside: Whether the page says, in parentheses, what calls it instead of a step
            before: Spark, a thread of its own, another process.
    """

    file: str
    name: str
    comes_from_outside: bool


def walks(page: str) -> dict[str, list[Step]]:
    """The steps of each walk of a page."""
    return {
        walk: [Step(file, name, bool(outside)) for file, name, outside in _STEP.findall(text)]
        for walk, text in _WALK.findall(page)
    }


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text())


def has(file: str, name: str) -> bool:
    """Whether a module defines it: a function, a class, or a method as ``Class.method``."""
    body: list[ast.stmt] = tree(file).body
    for part in name.split("."):
        defined = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == part
        ]
        if not defined:
            return False
        body = defined[-1].body
    return True


def mentions(file: str, name: str) -> bool:
    """Whether a module's code has the last part of a name, outside of definitions and imports."""
    last = name.rpartition(".")[2]
    return any(
        (isinstance(node, ast.Name) and node.id == last)
        or (isinstance(node, ast.Attribute) and node.attr == last)
        for node in ast.walk(tree(file))
    )


def faults(steps: list[Step]) -> list[str]:
    """Return the faults of a walk."""
    files = [file for file, _ in groupby(step.file for step in steps)]
    twice = sorted({file for file in files if files.count(file) > 1})
    missing = [step for step in steps if not (SOURCE / step.file).is_file()]
    if missing:
        return [f"there is no {step.file}" for step in missing]
    unknown = [f"{s.file} has no {s.name}" for s in steps if not has(s.file, s.name)]
    before = [{step.file for step in steps[:place]} for place in range(len(steps))]
    unreached = [
        f"no step before calls {step.name}"
        for step, earlier in zip(steps, before, strict=True)
        if not step.comes_from_outside and not any(mentions(file, step.name) for file in earlier)
    ]
    return unknown + unreached + [f"{file} is left and entered again" for file in twice]


PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_there_are_five_walks_of_some_steps() -> None:
    assert len(walks(PAGE)) == 5
    assert all(len(steps) >= 4 for steps in walks(PAGE).values())


@pytest.mark.integration
@pytest.mark.parametrize("walk", walks(PAGE))
def test_a_walk_is_straight_and_leads_where_it_says(walk: str) -> None:
    steps = walks(PAGE)[walk]
    assert steps[0].comes_from_outside, "somebody begins it"
    assert faults(steps) == []


def test_what_is_wrong_with_a_walk_is_found() -> None:
    plan = Step("gate/source/planner.py", "StreamPlanner.advance", comes_from_outside=True)
    law = Step("gate/control/plan.py", "plan", comes_from_outside=False)
    assert faults([plan, law]) == []
    for step in (
        Step("gate/control/plans.py", "plan", comes_from_outside=False),
        Step("gate/control/plan.py", "StreamPlanner.plan", comes_from_outside=False),
        Step("gate/control/bisection.py", "Bisection.give_up_waiting", comes_from_outside=False),
    ):
        assert len(faults([plan, step])) == 1
    assert faults([plan, law, plan]) == ["gate/source/planner.py is left and entered again"]


def test_steps_are_read_from_a_page() -> None:
    page = "## The way of a thing\n\n1. `a.py` `f` (Spark). Text.\n2. `b.py` `g`. Text.\n\n## End\n"
    assert walks(page) == {"a thing": [Step("a.py", "f", True), Step("b.py", "g", False)]}
