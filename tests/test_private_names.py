"""Private names of other packages that Headrace uses: each name, and a bound for it.

A package that is not bounded from above may change such a name for everybody who installs Headrace
that day. So each name is here, with where it is defined, and each package has a bound.
"""

import ast
import importlib.metadata
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src/headrace"

PRIVATE: Final = {
    "pyspark": {
        "_active_spark_context": "pyspark:SparkContext",
        "_jlistener": "pyspark.sql.streaming.listener:StreamingQueryListener",
        "_jlistenerobj": "pyspark.sql.streaming.listener:StreamingQueryListener",
        "_jsc": "pyspark:SparkContext",
        "_jsparkSession": "pyspark.sql:SparkSession",
        "_jvm": "pyspark:SparkContext",
        "_python_includes": "pyspark:SparkContext",
        "_wrap_function": "pyspark.sql.udf",
        "JStreamingQueryListener": "pyspark.sql.streaming.listener",
        "launch_gateway": "pyspark.java_gateway",
        "pythonExec": "pyspark:SparkContext",
        "to_arrow_type": "pyspark.sql.pandas.types",
    },
    "uvicorn": {"capture_signals": "uvicorn:Server"},
    "paho-mqtt": {
        "_handle_publish": "paho.mqtt.client:Client",
        "_in_packet": "paho.mqtt.client:Client",
        "_sock_recv": "paho.mqtt.client:Client",
    },
    "fsspec": {
        "_call": "fsspec.implementations.webhdfs:WebHDFS",
        "session": "fsspec.implementations.webhdfs:WebHDFS",
    },
}
"""By package: the names, and the modules or classes that define them."""

NOT_PRIVATE: Final = {"_asdict", "_exit", "_getframe", "_mapping", "_replace", "_value_"}
"""Documented, of a named tuple, of enums, of SQLAlchemy's rows, and of Python."""


def used() -> Iterator[tuple[str, str]]:
    """Each name with an underscore that no module of Headrace defines, and where it is used."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    own = set(NOT_PRIVATE)
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                own.add(name)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name) if is_private(name) and name not in own:
                    yield name, f"{path.relative_to(ROOT)}:{node.lineno}"
                case ast.ImportFrom(module=str(module)) if not module.startswith("headrace"):
                    for each in node.names:
                        if is_private(each.name):
                            yield each.name, f"{path.relative_to(ROOT)}:{node.lineno}"


def is_private(name: str) -> bool:
    return re.match("_[a-z]", name) is not None


@pytest.mark.integration  # It reads the source of all tests, which takes seconds.
def test_each_private_name_that_is_used_is_listed() -> None:
    listed = {name for names in PRIVATE.values() for name in names}
    assert [each for each in used() if each[0] not in listed] == []


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for names in PRIVATE.values() for name, place in names.items()],
)
def test_each_name_is_there_in_what_is_installed(name: str, place: str) -> None:
    module_name, _, class_name = place.partition(":")
    module = importlib.import_module(module_name)
    found = getattr(module, class_name) if class_name else module
    # Some are given to an instance, so only the class's own text has them.
    assert hasattr(found, name) or re.search(rf"\b{name}\b", inspect.getsource(found)), (
        f"{place} has no {name} any more in {sys.prefix}; see where it is used, and the bound of"
        " its package in pyproject.toml."
    )


@pytest.mark.parametrize("package", PRIVATE)
def test_each_of_their_packages_has_an_upper_bound_that_holds_here(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        listed += extra
    requirements = [each for each in map(Requirement, listed) if each.name == package]
    assert requirements
    installed = Version(importlib.metadata.version(package))
    for each in requirements:
        assert any(bound.operator == "<" for bound in each.specifier), str(each)
        assert each.specifier.contains(installed)
