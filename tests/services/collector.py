"""The OpenTelemetry Collector: this machine's own, or one that is built of its modules.

The build takes a minute or two and has its place in the cache.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.local.java import cache_folder, exclusive
from headrace.local.servers import free_ports

VERSION = "0.165.0"

_PACKAGE = "go.opentelemetry.io/collector"
_MODULES = {
    f"{_PACKAGE}/otelcol": VERSION,
    f"{_PACKAGE}/exporter/otlphttpexporter": VERSION,
    f"{_PACKAGE}/receiver/otlpreceiver": VERSION,
    f"{_PACKAGE}/service/telemetry/otelconftelemetry": VERSION,
    f"{_PACKAGE}/confmap/provider/fileprovider": "1.71.0",
}

CONFIGURATION = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  otlphttp:
    endpoint: {url}
    retry_on_failure:
      initial_interval: 200ms
      max_interval: 1s
      max_elapsed_time: 0s
service:
  pipelines:
    logs:
      receivers: [otlp]
      exporters: [otlphttp]
  telemetry:
    metrics:
      level: none
"""


def collector_program() -> Path:
    if found := shutil.which("otelcol"):
        return Path(found)
    place = cache_folder(f"otelcol-{VERSION}")
    built = place / "otelcol"
    with exclusive(place / "lock"):
        if not built.exists():
            _build(place)
    return built


def _build(place: Path) -> None:
    go = shutil.which("go")
    assert go, "These tests need a real Collector; install otelcol, or Go to build one."
    shutil.copy(Path(__file__).parent / "collector_source/main.go", place)
    (place / "go.mod").write_text("module headrace.test/otelcol\n\ngo 1.25\n")
    modules = [f"{name}@v{version}" for name, version in _MODULES.items()]
    env = {**os.environ, "GOWORK": "off"}
    build = ["build", "-o", "otelcol.new", "."]
    for arguments in (["get", *modules], ["mod", "tidy"], build):
        subprocess.run([go, *arguments], cwd=place, check=True, env=env, capture_output=True)
    (place / "otelcol.new").rename(place / "otelcol")


class Collector:
    """One that runs: where it takes logs, and what it has logged itself."""

    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/logs"
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()


@contextlib.asynccontextmanager
async def collector(folder: Path, url: str) -> AsyncIterator[Collector]:
    """The real program, which sends to a receiver what is posted to it."""
    path = await asyncio.to_thread(collector_program)
    (port,) = free_ports(1)
    configuration, log = folder / "collector.yaml", folder / "collector.log"
    configuration.write_text(CONFIGURATION.format(port=port, url=url))
    with log.open("wb") as output:
        running = await asyncio.create_subprocess_exec(
            path, "--config", f"file:{configuration}", stdout=output, stderr=output
        )
    try:
        yield Collector(port, log)
    finally:
        assert running.returncode is None, f"The Collector has ended: {log.read_text()[-500:]}"
        running.terminate()
        await running.wait()
