"""A manual backfill runs the batches that a stage deferred as the stage would have done."""

import importlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.operate.cli.commands import run
from tests.services.kafka import TopicFactory, records_in
from tests.services.waiting import wait_until

from headrace.errors import OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.backfill import work_of
from headrace.operate.cli.shared_options import load_handler

MODULE = """
from pathlib import Path

from headrace.flow import Flow, kafka

HERE = Path(__file__).parent

flow = Flow("shop", ledger=f"sqlite:///{HERE}/headrace.db", checkpoints=HERE / "checkpoints")
flow.channel("raw", kafka("raw", "nowhere:9092"))
flow.channel("clean", kafka("clean", "nowhere:9092"))


@flow.stage("clean", reads="raw", writes="clean", on_failure="defer", backfill="manual")
def clean(df, batch):
    if not (HERE / "mended").exists():
        raise ValueError("not yet")
    return df.selectExpr("concat('clean ', string(value)) as value")


@flow.stage("store", reads="clean")
def store(df, batch):
    df.count()
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a name of its own; the name of the flow in it."""
    name = f"shop_{tmp_path.name}".lower()
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:flow"


@pytest.mark.nightly
def test_a_batch_that_a_stage_deferred_is_written_to_its_channel_by_a_backfill(
    spark: SparkSession, shop: str, topic: TopicFactory, tmp_path: Path
) -> None:
    raw, clean = topic(), topic()
    raw.produce(*(b"%d" % number for number in range(30)))
    module = tmp_path / f"{shop.partition(':')[0]}.py"
    declared = module.read_text()
    for name, at in (("raw", raw), ("clean", clean)):
        declared = declared.replace(
            f'kafka("{name}", "nowhere:9092")', f'kafka("{at.name}", "{at.bootstrap_servers}")'
        )
    module.write_text(declared)
    flow = importlib.import_module(shop.partition(":")[0]).flow
    with flow.start(spark), Ledger.open(flow.ledger) as ledger:
        wait_until(lambda: ledger.batches.failed("shop.clean", 100), timeout_s=100)
    (tmp_path / "mended").touch()
    command = f"backfill shop.clean --flow {shop} --json --ledger {flow.ledger}"
    ended = run(*command.split(), folder=tmp_path, timeout_s=200)
    assert ended.returncode == 0, ended.stderr
    with Ledger.open(flow.ledger) as ledger:
        found = ledger.batches.newest("shop.clean", limit=100)
        assert {batch.status for batch in found} == {Status.SUCCESS}
        records = sum(batch.planned_records for batch in found)
    written = sorted((message.value() or b"").decode() for message in records_in(clean))
    assert written == sorted(f"clean {number}" for number in range(records))
    assert records > 0


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((None, None, None), "Neither --handler nor --flow is given"),
        (("a:b", None, "{shop}"), "--handler is given too; leave --handler out"),
        ((None, "a:b", "{shop}"), "--transform is given too; leave --transform out"),
    ],
)
def test_what_is_to_be_done_must_be_named_once(
    shop: str, named: tuple[str | None, str | None, str | None], told: str
) -> None:
    handler, transform, flow = named
    with pytest.raises(OptionError, match=told):
        work_of(handler, transform, flow and flow.format(shop=shop), "sqlite:///headrace.db")


def test_the_ledger_must_be_the_flows(shop: str) -> None:
    with pytest.raises(OptionError, match=r"ledger of flow .*, and --ledger is .*other\.db; leave"):
        work_of(None, None, shop, "sqlite:///other.db")


def test_a_gate_that_is_no_stage_is_refused(shop: str) -> None:
    work = work_of(None, None, shop, "sqlite:///headrace.db")
    told = "no stage of flow 'shop'; the stages of the flow have the gates 'shop.clean'"
    with pytest.raises(OptionError, match=told):
        work.handler("orders")


def test_what_a_stage_answers_is_not_lost_where_its_handler_is_named(
    tmp_path: Path, shop: str
) -> None:
    (tmp_path / "handlers_of_stages.py").write_text("def clean(df, batch):\n    return df\n")
    handle = load_handler("handlers_of_stages:clean", None)
    with pytest.raises(
        OptionError, match=r"which returned a value of type list; .* --flow module:flow"
    ):
        handle([], None)  # type: ignore[arg-type]
