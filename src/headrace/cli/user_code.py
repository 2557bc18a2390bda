"""A user's own functions and flows, named on the command line, and a Spark session to run them.

Only the module that is named is imported.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.printing import printable
from headrace.errors import OptionError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.execution.batch import Batch, Handler
    from headrace.flow import Flow


def load_handler(handler: str, transform: str | None) -> "Handler":
    """The function of ``--handler``, called with what ``--transform`` makes of each batch."""
    from headrace.execution.batch import check_handler  # noqa: PLC0415  (it brings Spark)

    handle = load_function("--handler", handler)
    check_handler(handle)
    derive = None if transform is None else load_function("--transform", transform)

    def handle_derived(df: "DataFrame", batch: "Batch") -> None:
        answer = handle(df if derive is None else derive(df), batch)
        if answer is not None:
            # If a stage's handler is called by itself, nobody writes its output.
            raise OptionError(
                f"--handler is {handler!r}, which has answered a value of type"
                f" {type(answer).__name__}; it must answer None, or, if it is a stage's of a flow,"
                " be called by that: --flow module:flow in its place."
            )

    return handle_derived


def load_function(option: str, name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    >>> load_function("--handler", "json:dumps")([1])
    '[1]'
    """
    found = _load(option, name, "a function", "module:function, such as shop.jobs:handle")
    if not callable(found):
        raise OptionError(
            f"{option} is {name!r}, which is of type {type(found).__name__} and cannot be called;"
            " name a function."
        )
    function: Callable[..., Any] = found
    return function


def load_flow(name: str) -> "Flow":
    """The flow that ``module:flow`` names, checked."""
    from headrace.flow import Flow  # noqa: PLC0415  (handlers do without)

    found = _load("The flow", name, "a flow", "module:flow, such as shop.flows:orders")
    if not isinstance(found, Flow):
        raise OptionError(
            f"The flow is {name!r}, which is of type {type(found).__name__}; name a"
            " headrace.flow.Flow."
        )
    found.check()
    return found


def _load(option: str, name: str, kind: str, form: str) -> object:
    """Return the object of ``module:name``, here or on the path; the rest is for errors."""
    module_name, colon, path = name.partition(":")
    if not (colon and path and all(part.isidentifier() for part in module_name.split("."))):
        raise OptionError(f"{option} is {name!r}; write {form}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(
            f"{option} is {name!r}, and {module_name} cannot be imported"
            f" ({type(error).__name__}: {printable(str(error))}); see that it can be from {here}."
        ) from error
    try:
        found: object = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise OptionError(
            f"{option} is {name!r}, but {module_name} ({module.__file__}) has no {path!r}; name"
            f" {kind} that it has."
        ) from error
    return found


def start_spark(name: str) -> "SparkSession":
    """The session of an application of this name, set up by its environment."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from headrace.execution import configure, register  # noqa: PLC0415

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        spark = configure(SparkSession.builder.appName(name)).getOrCreate()
    except PySparkRuntimeError as error:
        raise SetupError(
            f"Spark does not start ({error.getCondition()}); `headrace doctor` says what it needs."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
