from dataclasses import replace

import pytest
from tests.kafka.reads import Transactions, offsets, reader_config, rows, whole
from tests.services.kafka import Topic, TopicFactory

from headrace.errors import BrokerError
from headrace.kafka.range_reader import ReaderConfig, read_ranges
from headrace.source.losses import Losses

# Offsets of `mixed`: 0-1 committed, 2 control; 3-5 aborted, 6 control; 7-8 plain;
# 9 committed, 10 control; 11-12 aborted, 13 control. The log ends with a control record.
COMMITTED = [0, 1, 7, 8, 9]
ALL = [0, 1, 3, 4, 5, 7, 8, 9, 11, 12]
END = 14


@pytest.fixture(scope="module")
def mixed(topic: TopicFactory) -> Topic:
    made = topic(1)
    transactions = Transactions(made)
    transactions.write(2, commit=True)
    transactions.write(3, commit=False)
    made.produce(b"plain", b"plain")
    transactions.write(1, commit=True)
    transactions.write(2, commit=False)
    return made


def config(topic: Topic, level: str) -> ReaderConfig:
    return reader_config(topic.bootstrap_servers, columns=["offset"], isolation_level=level)


@pytest.mark.parametrize(
    ("level", "there"), [("read_committed", COMMITTED), ("read_uncommitted", ALL)]
)
def test_every_range_over_transactions_ends(mixed: Topic, level: str, there: list[int]) -> None:
    """Also those that end on a control record or inside an aborted transaction, or hold nothing."""
    for start in range(END):
        for until in range(start + 1, END + 1):
            found = offsets(config(mixed, level), whole(mixed, until, start=start))
            assert found == [offset for offset in there if start <= offset < until]


def test_an_open_transaction_is_waited_for_and_not_called_lost(topic: TopicFactory) -> None:
    made = topic(1)
    made.produce(b"before")
    transactions = Transactions(made)
    transactions.begin(1)
    assert offsets(config(made, "read_uncommitted"), whole(made, 2)) == [0, 1]
    committed = config(made, "read_committed")
    assert offsets(committed, whole(made, 1)) == [0]
    impatient = replace(committed, on_loss=Losses("Kafka", fail=False).pass_over, timeout_ms=200)
    # Of the record before it nothing is asked: a busy broker may not give even that in time.
    with pytest.raises(BrokerError, match=rf"{made.name}-0 \[1, 2\) for 200 ms"):
        offsets(impatient, whole(made, 2, start=1))
    batches = read_ranges(committed, [whole(made, 2)])
    assert next(batches).to_pylist() == [{"offset": 0}]
    transactions.end(commit=True)
    assert rows(batches) == [{"offset": 1}]
