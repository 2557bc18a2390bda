"""``headrace flow run`` where its end is not asked for politely; examples have the rest."""

from pathlib import Path

import pytest
from tests.operate.cli.commands import interrupted
from tests.services.kafka import TopicFactory

import headrace

SLOW = """
import time
from pathlib import Path

from headrace.flow import Flow, kafka

flow = Flow("slow", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
flow.channel("raw", kafka("{topic}", "{servers}"))


@flow.stage("store", reads="raw")
def store(df, batch):
    Path("runs").touch()
    time.sleep(600)
"""


@pytest.mark.nightly
def test_ctrl_c_twice_ends_it_though_a_handler_still_runs(
    topic: TopicFactory, tmp_path: Path
) -> None:
    raw = topic()
    raw.produce(*[b"tea"] * 10)
    module = SLOW.format(topic=raw.name, servers=raw.bootstrap_servers)
    (tmp_path / "slow.py").write_text(module)
    arguments = ["flow", "run", "slow:flow"]
    ended = interrupted(arguments, tmp_path, once_there_is=tmp_path / "runs")
    assert ended.returncode == 130
    assert ended.stdout == "Flow slow runs: store. Ctrl-C ends it.\n"
    assert "The flow stops; Ctrl-C once more ends it at once.\n" in ended.stderr
    # Spark's own workers, whose Java has gone, may show where they found that.
    assert str(Path(headrace.__file__).parent) not in ended.stderr
