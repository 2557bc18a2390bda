"""The image, as far as it can be made without Docker: its own commands, in an empty environment.

Steps that need root are left out, and Spark is this environment's. No test builds the image
itself; hadolint reads the whole file.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest
from tests.deploy.test_deployments import DEPLOY, containers
from tests.docs.pages import ROOT
from tests.services.waiting import wait_until

from headrace.journal import Journal, Records
from headrace.operate.local import Java

DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text()
OF_ROOT: Final = ("apt-get", "useradd")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def steps() -> list[str]:
    """The shell commands of the image."""
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return [line.removeprefix("RUN ") for line in joined.splitlines() if line.startswith("RUN ")]


def settings() -> dict[str, str]:
    """The variables of the image."""
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    (line,) = (line for line in joined.splitlines() if line.startswith("ENV "))
    return dict(re.findall(r"(\w+)=(\S+)", line))


@pytest.fixture(scope="module")
def image(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a shell in an environment that the image's steps have made."""
    folder = tmp_path_factory.mktemp("image")
    wheels = folder / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    locked = re.findall(
        r"^[\w.-]+==.*(?= \\$)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    (folder / "locked.txt").write_text("\n".join(locked))
    assert set(settings()) == {"SPARK_HOME", "PATH", "PYSPARK_PYTHON"}
    home = str(Path(pyspark.__file__).parent)
    ours = {"PYTHONPATH", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"}
    shell = {name: value for name, value in os.environ.items() if name not in ours} | {
        "SPARK_HOME": home,
        "PATH": f"{folder}/env/bin:{home}/bin:/usr/bin:/bin",
        "PYSPARK_PYTHON": f"{folder}/env/bin/python",
        "PIP_CONSTRAINT": str(folder / "locked.txt"),  # as in pip's cache
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JAVA_HOME": str(java.home),
    }
    ours_to_run = [step for step in steps() if not step.startswith(OF_ROOT)]
    assert len(ours_to_run) == 2
    for step in ours_to_run:
        here = step.replace("--no-cache-dir ", "").replace("/tmp/wheels", str(wheels))  # noqa: S108
        here = here.replace(settings()["SPARK_HOME"], home)
        subprocess.run(["sh", "-ec", here], env=shell, check=True, capture_output=True, text=True)
    yield shell


@pytest.mark.soak
def test_each_command_of_the_deployments_starts_in_it(image: dict[str, str]) -> None:
    commands = [each["command"] for each in containers() if each["command"][0] == "headrace"]
    assert commands
    for command in commands:
        words = [word for word in command if not word.startswith("--")]
        shown = subprocess.run(
            [*words, "--help"], env=image, check=True, capture_output=True, text=True
        )
        assert "Usage" in shown.stdout


@pytest.mark.soak
def test_the_job_runs_in_it(image: dict[str, str], tmp_path: Path) -> None:
    with Journal.open(str(tmp_path / "orders"), create=True).writer(0) as writer:
        writer.append(Records.of([b"an order"], timestamp_ms=1))
    variables = {
        "HEADRACE_LEDGER": f"sqlite:///{tmp_path}/headrace.db",
        "JOURNAL": str(tmp_path / "orders"),
        "OUTPUT": str(tmp_path / "out"),
        "CHECKPOINT": str(tmp_path / "checkpoint"),
    }
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            ["python", str(DEPLOY / "job.py")],
            env=image | variables,
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: job.poll() is not None or "1 orders" in (tmp_path / "log").read_text(), 180
        )
        assert job.poll() is None, (tmp_path / "log").read_text()[-3_000:]
        assert list(tmp_path.glob("out/batch=*/*.parquet"))
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_hadolint_finds_nothing() -> None:
    checked = subprocess.run(
        [Path(sys.executable).parent / "hadolint", str(DEPLOY / "Dockerfile")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (checked.stdout, checked.returncode) == ("", 0)
