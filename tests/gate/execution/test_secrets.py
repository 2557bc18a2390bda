"""Passwords and keys among a source's options stand in nothing that Spark shows or writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url
from tests.services.kafka import TopicFactory
from tests.services.postgresql import PostgresqlServer
from tests.services.queries import sentence, stream_of
from tests.services.spark_home import spark_home

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

PASSWORD = "hunter-of-the-ledger"  # noqa: S105  (it is the test's own)
KAFKA = {
    "kafka.ssl.key.password": "hunter-of-the-key-store",
    "kafka.ssl.keystore.key": "hunter-of-the-private-key",
    "kafka.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="app" password="hunter-of-jaas";'
    ),
}


def test_no_secret_is_in_a_plan_a_page_an_event_log_a_checkpoint_or_a_command_line(
    topic: TopicFactory, tmp_path: Path, own_postgresql: PostgresqlServer
) -> None:
    orders = topic(2)
    orders.produce(b"good", b"bad", *[b"good"] * 20)
    shown = tmp_path / "shown"
    shown.mkdir()
    with psycopg.connect(own_postgresql.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute(b"GRANT ALL ON SCHEMA public TO app")
    own_postgresql.ask_for_the_password_of("app")
    url = make_url(own_postgresql.url).set(username="app", password=PASSWORD)
    full = url.render_as_string(hide_password=False)
    public = full.replace(f":{PASSWORD}", "")
    arguments = (str(tmp_path), orders.bootstrap_servers, orders.name)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.gate.execution.secrets_driver", *arguments],
        input=json.dumps({"ledger": full, "public": public, "kafka": KAFKA}) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_HOME": str(spark_home(tmp_path))},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5_000:]
    with Ledger.open(full, create=False) as ledger:
        # The planner, the driver, and the tasks of what was read again did know the password.
        assert {b.status for b in ledger.batches.newest("bare")} == {Status.SUCCESS}
        assert len(ledger.dead_letters.oldest("orders")) == 1
    files = [each for each in shown.rglob("*") if each.is_file()]
    everything = [ran.stdout, ran.stderr, *(each.read_text(errors="replace") for each in files)]
    assert any("/checkpoint/" in str(each) for each in files)
    assert any("SparkListenerSQLExecutionStart" in text for text in everything)
    assert public.partition("?")[0] in (shown / "said").read_text(), "that much may be seen"
    for text in everything:
        for secret in (PASSWORD, *KAFKA.values(), "hunter-of-jaas"):
            assert secret not in text


@pytest.mark.parametrize("option", ["headrace.ledger", "headrace.channel"])
def test_a_password_that_spark_would_show_is_refused_without_a_word_of_it(
    spark: SparkSession, topic: TopicFactory, option: str
) -> None:
    options = {"headrace.gate": "orders", "headrace.ledger": "sqlite:///x.db"}
    options[option] = f"postgresql://app:{PASSWORD}@db/orders"
    with pytest.raises(AnalysisException) as raised:
        stream_of(spark, topic(), options)
    assert sentence(raised.value).startswith(f"OptionError: The option {option} has a password")
    assert PASSWORD not in str(raised.value)
