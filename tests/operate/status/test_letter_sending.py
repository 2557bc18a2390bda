"""Dead letters of several brokers: what one has taken is written down before the next can fail."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.gate.ledger.samples import convict
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, DeadLetterStatus, PlannedBatch, PlannedRange
from headrace.operate.status.letter_sending import LetterSender


class Brokers:
    """Takes every record once it is flushed."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Future[str]]] = []

    def send(self, record: Any) -> Future[str]:
        self.sent.append((record, Future()))
        return self.sent[-1][1]

    def flush(self) -> None:
        for number, (record, sent) in enumerate(self.sent):
            if not sent.done():
                sent.set_result(f"{record.topic}-0 at {number}")


class Refusing(Brokers):
    """Options do not fit these brokers."""

    def send(self, record: Any) -> Future[str]:
        raise OptionError("kafka.sasl.mechanism is missing.")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a dead letter from each of the brokers ``a:1`` and ``b:1``."""
    with new_ledger(f"sqlite:///{tmp_path}/headrace.db") as opened:
        opened.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        for offset, servers in enumerate(["a:1", "b:1"]):
            planned = (PlannedRange(OffsetRange("orders", 0, offset, offset + 1)),)
            batch = opened.batches.begin(PlannedBatch("orders", "run", planned, "rate", servers))
            report = ErrorReport("ValueError", "no number", "")
            letter = DeadLetter("orders", 0, offset, b"key", b"12,50", None, 0, 0, report)
            convict(opened, batch.batch_key, letter)
        yield opened


def test_what_the_first_brokers_have_is_sent_though_the_options_do_not_fit_the_second(
    ledger: Ledger,
) -> None:
    brokers = Brokers()
    producers: Any = {"a:1": brokers, "b:1": Refusing()}
    sender = LetterSender(ledger, {}, None, producers=producers)
    with pytest.raises(OptionError, match="is missing"):
        sender.send(ledger.dead_letters.oldest("orders"))
    assert len(brokers.sent) == 1
    statuses = [each.status for each in ledger.dead_letters.oldest("orders")]
    assert statuses == [DeadLetterStatus.SENT, DeadLetterStatus.WAITING]
    assert sender.outcome() == "1 dead letter sent"
