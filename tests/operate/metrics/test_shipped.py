"""Alert rules and dashboard, checked with Prometheus' own tools and run in a real Prometheus."""

import http.server
import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gate.ledger.samples import convict
from tests.operate.metrics.fleets import ERROR, letter, plan
from tests.services.debian import program
from tests.services.waiting import wait_until

from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local.servers import free_ports
from headrace.operate.metrics import OPENMETRICS_TYPE
from headrace.operate.metrics.scrape import MetricsMemory, exposition
from headrace.operate.metrics.shipped import alert_rules, grafana_dashboard

pytestmark = pytest.mark.nightly

DAY_MS = 24 * 3_600_000


@pytest.fixture
def troubled(tmp_path: Path) -> str:
    """A ledger with a batch that failed the day before yesterday, a dead letter and a backlog."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    then_ms = wall_clock_ms() - 2 * DAY_MS
    with Ledger.open(url, clock=lambda: then_ms) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 60_000) is None
        ledger.batches.fail(plan(ledger, 0, 10, 100).batch_key, ERROR)
        batch = plan(ledger, 10, 10, 100)
        ledger.batches.attach(batch.batch_key, 2, owner="me", lease_ms=60_000)
        convict(ledger, batch.batch_key, letter(12))
    return url


def promtool(*arguments: str, text: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    found = program("promtool")
    return subprocess.run(
        [found.path, *arguments], input=text, env=found.variables, capture_output=True, check=False
    )


def test_promtool_finds_nothing_wrong_with_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alert_rules())
    checked = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert checked.returncode == 0, checked.stderr
    assert b"SUCCESS: 11 rules found" in checked.stdout


STOPPED = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'headrace_query_running{gate="unknown"}', values: '0x30'}
      - {series: 'headrace_query_running{gate="behind"}', values: '0x30'}
      - {series: 'headrace_query_running{gate="empty"}', values: '0x30'}
      - {series: 'headrace_query_running{gate="idle"}', values: '1x30'}
      - {series: 'headrace_lag_age_seconds{gate="unknown"}', values: '0+60x30'}
      - {series: 'headrace_lag_age_seconds{gate="behind"}', values: '0+60x30'}
      - {series: 'headrace_lag_age_seconds{gate="empty"}', values: '0+60x30'}
      - {series: 'headrace_lag_age_seconds{gate="idle"}', values: '0+60x30'}
      - {series: 'headrace_paused{gate="unknown"}', values: '0x30'}
      - {series: 'headrace_paused{gate="behind"}', values: '0x30'}
      - {series: 'headrace_lag_records{gate="behind"}', values: '2500x30'}
      - {series: 'headrace_lag_seconds{gate="behind"}', values: '0+60x30'}
      - {series: 'headrace_batch_interval_seconds{gate="behind"}', values: '1x30'}
      - {series: 'headrace_lag_records{gate="empty"}', values: '0x30'}
    promql_expr_test:
      - expr: sum by (alertname, gate) (ALERTS{alertstate="firing"})
        eval_time: 10m
        exp_samples:
          - labels: '{alertname="HeadraceNoReport", gate="behind"}'
            value: 1
      - expr: sum by (alertname, gate) (ALERTS{alertstate="firing"})
        eval_time: 20m
        exp_samples:
          - labels: '{alertname="HeadraceNoReport", gate="behind"}'
            value: 1
          - labels: '{alertname="HeadraceLagUnknown", gate="unknown"}'
            value: 1
"""


def test_a_gate_that_has_stopped_raises_an_alert_be_its_lag_known_or_not(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alert_rules())
    (tmp_path / "stopped.yml").write_text(STOPPED)
    tested = promtool("test", "rules", str(tmp_path / "stopped.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics(troubled: str) -> None:
    with Ledger.open(troubled, create=False) as ledger:
        text = exposition(ledger, per_partition=True)
    checked = promtool("check", "metrics", text=text)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_what_the_rules_and_the_dashboard_ask_for_is_there(troubled: str) -> None:
    with Ledger.open(troubled, create=False) as ledger:
        known = set(re.findall(rb"^# TYPE (\S+)", exposition(ledger), re.MULTILINE))
    # Metrics that only some ledgers have: of flows, and of sources that were asked.
    known |= {b"headrace_retention_remaining_seconds", b"headrace_drain_seconds"}
    asked = set(re.findall(r"headrace_\w+", alert_rules() + grafana_dashboard()))
    of_flows = {each for each in asked if each.startswith("headrace_stage_")}
    families = {re.sub("_bucket$", "", each) for each in asked - of_flows}
    rates = {"headrace_rate_limit_records_per_second", "headrace_capacity_records_per_second"}
    assert families - rates <= {each.decode() for each in known}


def test_the_dashboard_is_json_with_a_query_in_each_panel() -> None:
    dashboard = json.loads(grafana_dashboard())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    assert all("headrace_" in panel["targets"][0]["expr"] for panel in panels)


def test_each_panel_about_gates_shows_those_that_are_chosen() -> None:
    dashboard = json.loads(grafana_dashboard())
    (variable,) = [each for each in dashboard["templating"]["list"] if each["name"] == "gate"]
    assert variable["multi"] and variable["includeAll"]
    metric = re.fullmatch(r"label_values\((headrace_\w+), gate\)", variable["query"]["query"])
    assert metric is not None
    queries = [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    assert any(metric[1] in query for query in queries)
    of_gates = [query for query in queries if "headrace_stage_" not in query]
    assert len(of_gates) >= 10
    assert all('gate=~"$gate"' in query for query in of_gates)


@contextmanager
def serving(text: Callable[[], bytes], kind: str) -> Iterator[int]:
    """Answers every request with such a text, at a port of this machine."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is said."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def metrics_of(url: str) -> Iterator[int]:
    """Serves a ledger's metrics at a port of this machine."""
    memory = MetricsMemory()

    def text() -> bytes:
        with Ledger.open(url, create=False) as ledger:
            return exposition(ledger, memory=memory, openmetrics=True)

    with serving(text, OPENMETRICS_TYPE) as port:
        yield port


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[int]:
    """A Prometheus that scrapes this port every second, with the shipped rules; its own port."""
    (port,) = free_ports(1)
    (folder / "rules.yml").write_text(alert_rules())
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: headrace, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
    )
    found = program("prometheus")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                found.path,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            env=found.variables,
            stdout=log,
            stderr=log,
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


def test_a_real_prometheus_scrapes_and_fires_an_alert(troubled: str, tmp_path: Path) -> None:
    def alerts() -> dict[str, dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/alerts"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["alerts"]
        except OSError:
            return {}
        return {each["labels"]["alertname"]: each for each in found}

    def have_come() -> bool:
        now = alerts()
        old = now.get("HeadraceFailedBatchOld", {})
        return old.get("state") == "firing" and "HeadraceDeadLetters" in now

    with metrics_of(troubled) as target, prometheus(tmp_path, target) as port:
        wait_until(have_come, 60)
        fired = alerts()
    old = fired["HeadraceFailedBatchOld"]
    assert old["labels"]["gate"] == "orders"
    assert "2d 0h" in old["annotations"]["summary"]
    assert fired["HeadraceDeadLetters"]["state"] == "pending", "that one is given an hour"
    assert "HeadraceLedgerUnreachable" not in fired
