"""Records that are gone before a query has read them: told, and passed over only on request."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.services.changes import create_again, delete_records, delete_topic
from tests.services.kafka import TopicFactory
from tests.services.queries import available_now, running, sentence, stream_of

from headrace.control import OffsetRange
from headrace.ledger import Ledger


def test_a_query_goes_on_past_what_is_lost_where_the_user_says_so(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    aged, deleted, made_anew, quiet = (topic(prefix=f"lossy-{n}") for n in range(4))
    every = (aged, deleted, made_anew, quiet)
    url = f"sqlite:///{tmp_path}/headrace.db"
    options = {
        "subscribe": ",".join(t.name for t in every),
        "failOnDataLoss": False,
        "headrace.gate": "lossy",
        "headrace.ledger": url,
    }
    checkpoint = tmp_path / "checkpoint"
    df = stream_of(spark, aged, options)
    for each in every:
        each.produce(b"before", b"before")
    assert len(available_now(df, checkpoint).rows) == 8

    aged.produce(b"gone", b"gone", b"aged")
    delete_records(admin, aged, before=4)
    deleted.produce(b"gone")
    delete_topic(admin, deleted)
    made_anew.produce(b"gone")
    create_again(admin, made_anew)
    made_anew.produce(b"anew", b"anew", b"anew")
    quiet.produce(b"quiet")
    assert available_now(df, checkpoint).values == ["aged", "anew", "anew", "anew", "quiet"]
    with Ledger.open(url) as ledger:
        assert [loss.offsets for loss in ledger.losses("lossy")] == [
            OffsetRange(aged.name, 0, 2, 4)
        ]


def test_a_query_stops_at_what_is_lost_and_tells_what(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    aged, deleted = topic(), topic()
    df = stream_of(spark, aged, {"subscribe": f"{aged.name},{deleted.name}"})
    for each in (aged, deleted):
        each.produce(b"before")
    with running(df, tmp_path) as collected:
        collected.wait_for(lambda c: len(c.rows) == 2)
        delete_topic(admin, deleted)
        with pytest.raises(StreamingQueryException) as raised:
            collected.wait_for(lambda _: False)
    assert sentence(raised.value) == (
        "DataLossError: Kafka has lost records that this query had still to read:"
        f" {deleted.name}-0 does not exist any more; to go on without them, counted, set the option"
        " failOnDataLoss to false."
    )
