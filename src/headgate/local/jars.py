"""Fetch jars from Maven's repository, once, with the Ivy that pyspark carries.

Behind a company's mirror, ``HEADGATE_IVY_SETTINGS`` names an Ivy settings file that says where to
look instead (the same file that Spark takes as ``spark.jars.ivySettings``).
"""

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import SetupError
from headgate.local.cache import cache_folder, exclusive
from headgate.local.java import Java

Progress = Callable[[str], None]
"""Called with one short line for each step; several lines while jars arrive."""

# Java waits for ever on a server that does not answer, unless it is told these (in ms).
NETWORK_TIMEOUTS = (
    "-Dsun.net.client.defaultConnectTimeout=20000",
    "-Dsun.net.client.defaultReadTimeout=60000",
)

LAST_WORDS = 8
"""Lines of Ivy's log that an error shows."""

IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="headgate" module="local"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
IVY_DEPENDENCY = (
    '    <dependency org="{organisation}" name="{name}" rev="{revision}" '
    'conf="default-&gt;default" transitive="{transitive}"/>'
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One artifact of Maven's repository, alone or with all that it depends on."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False


# The server logs through slf4j and its own dependencies bring no back end: without one a broker
# that does not start would not say why.
KAFKA_SERVER = (
    Artifact("org.apache.kafka", "kafka_2.13", "4.1.0", transitive=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
# Named one by one: what they depend on is in pyspark's own jars.
SPARK_CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artifact("org.apache.commons", "commons-pool2", "2.13.1"),
)


def ignore(_line: str) -> None:
    """Progress that nobody wants to see."""


def kafka_server_jars(java: Java, progress: Progress = ignore) -> Path:
    """The folder of the jars that a Kafka broker is; fetched (43 MB) the first time.

    Raises:
        SetupError: They are not there and cannot be fetched.
    """
    return _fetched("kafka-server", KAFKA_SERVER, java, progress)


def connector_jars(java: Java, progress: Progress = ignore) -> tuple[Path, ...]:
    """The jars of Spark's own Kafka connector, for ``spark.jars``; fetched the first time.

    Raises:
        SetupError: They are not there and cannot be fetched.
    """
    return tuple(sorted(_fetched("spark-connector", SPARK_CONNECTOR, java, progress).iterdir()))


def _fetched(name: str, artifacts: tuple[Artifact, ...], java: Java, progress: Progress) -> Path:
    """The cache's folder of these artifacts: there in full or not at all, whoever else fetches."""
    jars = cache_folder() / "jars"
    folder = jars / f"{name}-{artifacts[0].revision}"
    if not folder.is_dir():
        with exclusive(jars / "lock"), tempfile.TemporaryDirectory(dir=jars) as work:
            if not folder.is_dir():  # another process may have fetched it while this one waited
                progress(f"Fetching {folder.name} through Ivy, once")
                _retrieve(artifacts, Path(work), java, progress)
                (Path(work) / "jars").rename(folder)
    return folder


def _retrieve(artifacts: tuple[Artifact, ...], work: Path, java: Java, progress: Progress) -> None:
    """Run Ivy so that ``work/jars`` holds the artifacts; its own cache stays in ``work`` too."""
    module = work / "ivy.xml"
    module.write_text(_ivy_module(artifacts))
    settings = os.environ.get("HEADGATE_IVY_SETTINGS")
    command = [
        *(str(java.executable), *NETWORK_TIMEOUTS, "-jar", str(_ivy_jar())),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(work / "cache"), "-ivy", str(module), "-types", "jar", "bundle"),
        *("-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as ivy:
        for line in ivy.stdout or ():
            log.append(line.strip())
            if fetched := re.search(r"\[SUCCESSFUL \].*!([^ (]+)", line):
                progress(f"Fetched {fetched[1]}")
    if ivy.returncode != 0:
        wanted = ", ".join(f"{a.organisation}:{a.name}:{a.revision}" for a in artifacts)
        raise SetupError(
            f"Ivy could not fetch {wanted}; connect this machine to Maven's repository, or let "
            "HEADGATE_IVY_SETTINGS name an Ivy settings file with the address of your mirror. "
            "Ivy's last words:\n" + "\n".join(_last_words(log))
        )


def _last_words(log: list[str]) -> list[str]:
    """The end of Ivy's log without its rulers and advice."""
    said = [line for line in log if line.strip(": ") and not line.startswith(":: USE VERBOSE")]
    return said[-LAST_WORDS:]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for package in (spec and spec.submodule_search_locations) or ():
        for jar in Path(package, "jars").glob("ivy-*.jar"):
            return jar
    raise SetupError(
        "The installed pyspark has no ivy-*.jar among its jars, which is what fetches jars; "
        "install the full package: pip install 'pyspark>=4.2'."
    )


def _ivy_module(artifacts: tuple[Artifact, ...]) -> str:
    lines = [
        IVY_DEPENDENCY.format(
            organisation=artifact.organisation,
            name=artifact.name,
            revision=artifact.revision,
            transitive=str(artifact.transitive).lower(),
        )
        for artifact in artifacts
    ]
    return IVY_MODULE.format(dependencies="\n".join(lines))
