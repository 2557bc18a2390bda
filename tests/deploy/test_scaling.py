"""The ScaledObject's query in a real Prometheus: how many workers an HPA asks for, by the load."""

import json
import math
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from tests.deploy.test_deployments import DEPLOY, documents, pods
from tests.operate.metrics.fleets import plan
from tests.operate.metrics.test_shipped import prometheus, serving
from tests.services.spark_home import spark_home
from tests.services.waiting import wait_until

from headrace.core.timing import wall_clock_ms
from headrace.gate.control.hold import SinkOutage
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local import Java
from headrace.operate.local.servers import free_ports
from headrace.operate.metrics import PROMETHEUS_TYPE
from headrace.operate.metrics.scrape import MetricsMemory, exposition
from headrace.testing import ManualClock

SCALED: Final = yaml.safe_load((DEPLOY / "kubernetes/standalone/scaled-object.yaml").read_text())
SPEC: Final = SCALED["spec"]
(TRIGGER,) = (each["metadata"] for each in SPEC["triggers"])
LEAST: Final[int] = SPEC["minReplicaCount"]
MOST: Final[int] = SPEC["maxReplicaCount"]
STEP_S: Final = 10
STEPS: Final = 24
TOLERANCE: Final = 0.1
"""The part by which an HPA lets a metric be off its target."""


@dataclass(frozen=True)
class Load:
    """What happens to a gate: records that arrive and that its job can process a second."""

    arrive_per_s: int
    process_per_s: int
    waiting: int = 0
    last: Callable[[Ledger, str], object] = lambda _ledger, _gate: None


def away(ledger: Ledger, gate: str) -> None:
    """The gate's newest batch waits for its sink."""
    key = plan(ledger, 10**7, 10, 10**7 + 10, gate).batch_key
    now_ms = ledger.database_time_ms()
    outage = SinkOutage(key, now_ms - 60_000, 3, now_ms + 30_000, "refused", is_certain=True)
    ledger.sink_outages.keep(gate, outage)


LOADS: Final = {
    "steady": Load(2_000, 4_000),
    "grows": Load(10_000, 4_000),
    "floods": Load(50_000, 4_000),
    "drains": Load(100, 3_000, waiting=3_000_000),
    "idle": Load(0, 4_000, waiting=10),
    "paused": Load(
        10_000, 4_000, last=lambda ledger, gate: ledger.operator_limits.pause(gate, "ops")
    ),
    "away": Load(10_000, 4_000, last=away),
    "stopped": Load(10_000, 4_000, last=lambda ledger, gate: ledger.gates.release(gate, gate)),
}


def history(url: str) -> bytes:
    """What Headrace's metrics were in the last minutes, each with its time."""
    clock = ManualClock(now_ms=wall_clock_ms() - STEP_S * STEPS * 1_000)
    memory, lines = MetricsMemory(), list[str]()
    with Ledger.open(url, clock=clock) as ledger:
        for gate in LOADS:
            ledger.gates.declare(gate, interval_ms=10_000, source="kafka", estimator="learned")
            claim = GateClaim(gate, gate, None, None, "a test", 10_000, "kafka", "learned")
            assert ledger.gates.claim(claim, 3_600_000) is None
        starts = dict.fromkeys(LOADS, 0)
        for step in range(1, STEPS + 1):
            clock.now_ms += STEP_S * 1_000
            for gate, load in LOADS.items():
                latest = load.waiting + load.arrive_per_s * STEP_S * step
                count = min(load.process_per_s * STEP_S, latest - starts[gate])
                if count:
                    batch = plan(ledger, starts[gate], count, latest, gate)
                    ledger.batches.succeed(batch.batch_key)
                    starts[gate] += count
                if step == STEPS:
                    load.last(ledger, gate)
            text = exposition(ledger, memory=memory, clock=clock).decode()
            samples = [each for each in text.splitlines() if not each.startswith("#")]
            lines += [f"{each} {clock.now_ms}" for each in samples]
    return "".join(f"{each}\n" for each in lines).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A Prometheus that has scraped that history; its port."""
    folder = tmp_path_factory.mktemp("scaling")
    text = history(f"sqlite:///{folder}/headrace.db")
    with serving(lambda: text, PROMETHEUS_TYPE) as target, prometheus(folder, target) as port:
        wait_until(lambda: result(port, 'headrace_paused{gate="steady"}'), 60)
        yield port


def result(port: int, query: str) -> list[dict[str, Any]]:
    """The elements of an instant query, asked as KEDA asks; none while nobody listens."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote_plus(query)}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return found


def keda(port: int, query: str, *, ignore_null_values: bool = False) -> float | None:
    """The value as KEDA's Prometheus scaler takes it; None for its error."""
    found = result(port, query)
    assert len(found) <= 1, "KEDA refuses several elements"
    value = float(found[0]["value"][1]) if found else math.nan
    if math.isfinite(value):
        return max(value, 0.0)
    return 0.0 if ignore_null_values else None


def replicas(value: float | None, now: int) -> int:
    """As an HPA goes by an AverageValue; it leaves all as it is where the metric has an error."""
    threshold = float(TRIGGER["threshold"])
    if value is None or abs(1 - value / (threshold * now)) <= TOLERANCE:
        return now
    return min(max(math.ceil(value / threshold), LEAST), MOST)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("gate", "now", "asked"),
    [
        ("steady", 1, 1),
        ("steady", 5, 1),
        ("grows", 1, 5),  # 10 000/s, and 1.4 million within five minutes: 14 800/s
        ("grows", 5, 5),
        ("floods", 1, MOST),
        ("drains", 8, 3),  # 100/s, and 2.3 million within five minutes: 7 780/s
        ("idle", 1, LEAST),
        ("idle", 8, LEAST),
        ("paused", 3, 3),
        ("away", 3, 3),
        ("stopped", 3, 3),
        ("not there", 3, 3),
    ],
)
def test_workers_follow_the_load(server: int, gate: str, now: int, asked: int) -> None:
    assert TRIGGER["ignoreNullValues"] == "false"
    value = keda(server, TRIGGER["query"].replace('"orders"', f'"{gate}"'))
    assert replicas(value, now) == asked, value
    assert (value is None) == (gate in {"paused", "away", "stopped", "not there"})


@pytest.mark.nightly
def test_a_backlog_that_never_drains_asks_for_no_more_by_the_time_to_drain_it(server: int) -> None:
    drains = 'headrace_drain_seconds{gate="grows"}'
    assert result(server, drains)[0]["value"][1] == "+Inf"
    assert keda(server, drains, ignore_null_values=True) == 0, "as if nothing waited"
    assert keda(server, drains) is None


def test_what_keda_scales_is_there_and_its_hpa_is_what_kubernetes_knows() -> None:
    kinds = {
        each["metadata"]["name"]: each for _, each in documents() if each["apiVersion"] == "apps/v1"
    }
    target = kinds[SPEC["scaleTargetRef"]["name"]]
    assert target["kind"] == "Deployment"  # KEDA's default
    assert "replicas" not in target["spec"], "applying it again would undo the scaling"
    metric = {"metric": {"name": "s0-prometheus"}}
    goal = {"type": "AverageValue", "averageValue": TRIGGER["threshold"]}
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-headrace-worker"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"},
            "minReplicas": LEAST,
            "maxReplicas": MOST,
            "metrics": [{"type": "External", "external": metric | {"target": goal}}],
            "behavior": SPEC["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
        },
    }
    kubernetes_validate.validate(hpa, kubernetes_validate.latest_version(), strict=True)
    assert all(isinstance(value, str) for value in TRIGGER.values()), "KEDA takes strings alone"


@contextmanager
def started(command: list[str], log: Path, home: Path) -> Iterator[None]:
    """A command of a container, with the service's name and port as this machine's."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [home / "bin" / command[0], *command[1:]],
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.nightly
def test_a_worker_of_the_deployment_joins_its_master(java: Java, tmp_path: Path) -> None:
    assert java.home
    (port,) = free_ports(1)
    here = {"headrace-master": "127.0.0.1", "7077": str(port), "/tmp/spark": str(tmp_path / "work")}  # noqa: S108
    commands = {}
    for pod in pods():
        (container,) = pod["spec"]["containers"]
        if container.get("args", [])[:1] == ["spark-class"]:
            words = [here.get(each, each) for each in container["args"]]
            words = [each.replace("headrace-master:7077", f"127.0.0.1:{port}") for each in words]
            commands[container["name"]] = words
    home, log = spark_home(tmp_path), tmp_path / "master.log"
    with (
        started(commands["master"], log, home),
        started(commands["worker"], tmp_path / "worker.log", home),
    ):
        wait_until(lambda: "Registering worker" in log.read_text(), 60)
    assert "with 2 cores, 2.0 GiB RAM" in log.read_text()
