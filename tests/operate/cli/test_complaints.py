"""Error messages of commands: one sentence, without a secret; nothing is changed."""

import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.gate.ledger.samples import convict
from tests.journal.samples import numbered
from tests.operate.cli.conftest import Complain
from tests.operate.cli.outcomes import Shop, damage, invoke, planned
from tests.operate.cli.test_flows import SHOP

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetterStatus
from headrace.journal import Journal

LETTER_EDITS = """
from dataclasses import replace

def fail(letter):
    raise KeyError("price")

def text(letter):
    return replace(letter, value="text")

def nothing_of_it(letter):
    return letter.value
"""

NO_GATE = "has no gate 'order'; the gates it has: orders."
NO_TIME = "'; it must be a time such as"
NO_LEDGER = "/none.db; a gated query creates it at its start; to read another ledger, name it with"
IN_ONE_WAY = "in one way"
BACKFILL = "backfill --handler operator:is_"
SEND = "dead-letters send"
BY_ID = "name IDs, or give --all, or --all GATE"
PRUNE = "journal prune {folder}/orders --older-than"
REPAIR = "journal repair {folder}/orders --reached"
A_LANE = "write a lane"

COMPLAINTS = [
    ("status order", NO_GATE),
    ("status --ledger mysql://db", "A ledger cannot be kept in 'mysql'"),
    *((f"{each} order", NO_GATE) for each in ("batches", "failures", "dead-letters list")),
    ("dead-letters export order", NO_GATE),
    ("batches --since soon", f"--since is 'soon{NO_TIME}"),
    ("batches --until 2", f"--until is '2{NO_TIME}"),
    (
        "batches zz",
        "has no gate 'zz'; the gates it has: orders. No batch has a key that begins",
    ),
    ('batches "\' OR 1=1 --"', "No batch has a key that begins"),
    (f"batches {'0' * 32}", "No batch has a key that begins"),
    ("batches {shop.dead} --status dead", "is the key of one batch, which cannot be combined"),
    ("batches --ledger postgresql://u:hunter2@127.0.0.1:1/db", "cannot be reached"),
    *(
        (f"{each} --ledger sqlite:///none.db", NO_LEDGER)
        for each in (
            *("status", "batches", "failures", "verify", "dead-letters list", f"{BACKFILL} --all"),
            *("prune --older-than '1 day'", "drop ab --why x", f"{PRUNE} 7d"),
            *("dead-letters drop 1 --why x", f"{SEND} 1"),
        )
    ),
    ("drop {shop.dead} {shop.failed} --why x", "is failed; only a dead batch"),
    ("drop {shop.dead} --why ' '", "--why is empty"),
    ("drop zz --why x", "has no batch 'zz'"),
    *((f"prune --older-than='{age}'", "--older-than") for age in ("", "soon", "30", "-1 day")),
    # Dead letters
    ("dead-letters drop 1 --why ' '", "--why is empty; say why"),
    ("dead-letters drop 99999999999999999999 --why x", "has no dead letter 9999"),
    ("dead-letters drop 1 77 --why x", "has no dead letter 77"),
    ("dead-letters drop 2 --why x", "Dead letter 2 was dropped already (a test order)"),
    *((f"{SEND} {each}", BY_ID) for each in ("",)),
    (f"{SEND} 1 --all", "has no gate '1'"),
    (f"{SEND} --all orders clicks", "--all takes at most one gate"),
    (f"{SEND} 1 9", "has no dead letter 9"),
    (f"{SEND} 1 {2**70}", f"has no dead letter {2**70}"),
    (f"{SEND} 1 2", "Dead letter 2 was dropped already (a test order)"),
    (f"{SEND} --all clicks", "has no gate 'clicks'"),
    (f"{SEND} 1 --option kafka.sasl.jaas.confg=hunter2", "did you mean kafka.sasl.jaas.config"),
    (f"{SEND} 1 --edit letter_edits:fail", "failed on dead letter 1 (KeyError: 'price')"),
    (f"{SEND} 1 --edit letter_edits:text", "a value of type DeadLetter for dead letter 1; it must"),
    (f"{SEND} 1 --edit letter_edits:nothing_of_it", "of type bytes for dead letter 1; it must"),
    (f"{SEND} 1 --edit letter_edits:absent", "has no 'absent'"),
    # Backfill
    *(
        (f"{BACKFILL} {each}", IN_ONE_WAY)
        for each in ("", "--all --since 1h", "orders --all --since 1h", "orders {shop.failed}")
    ),
    (f"{BACKFILL} --all orders --status failed", IN_ONE_WAY),
    (f"{BACKFILL} {{shop.failed}} --since 1h", "is the key of one batch, which cannot be combined"),
    (f"{BACKFILL} --all clicks", "has no gate 'clicks'"),
    (f"{BACKFILL} xyz", "has no gate 'xyz'; the gates it has: orders. No batch has a key"),
    (f"{BACKFILL} --status dead", "--status is 'dead', but only batches that are failed or"),
    (f"{BACKFILL} --since soon", "--since is 'soon'"),
    (f"{BACKFILL} --all --option hunter2", "--option is not NAME=VALUE"),
    (f"{BACKFILL} --all --option starting=1", "There is no option starting"),
    (f"{BACKFILL} --all --handler json:missing", "has no 'missing'"),
    (f"{BACKFILL} --all --transform nowhere:f", "No module named 'nowhere'"),
    (f"{BACKFILL} {{shop.failed}} {{shop.good}}", "is success, so it is processed"),
    (f"{BACKFILL} {{shop.busy}}", "is run by another backfill, whose lease lasts at least until"),
    (
        f"{BACKFILL} {{shop.dead}}",
        "is dead, by orders-0 [40, 50) has left Kafka (DataLossError), which",
    ),
    (f"{BACKFILL} {{shop.isolated}}", "is success, so it is processed"),
    (f"{BACKFILL} {{shop.open}}", "is in_progress, so the live stream runs it"),
    # Journals
    *((f"journal {each} {{folder}}/none", "no journal") for each in ("ls", "verify", "repair")),
    ("journal ls '{folder}/my orders'", "journal's name 'my orders'"),
    ("journal verify http://host/orders", "http:// URLs are not supported for a journal"),
    ("journal ls {folder}/orders --lane 5", "has no lane 5; the lanes it has: 0, 7."),
    *((f"{REPAIR} {each}", A_LANE) for each in ("0", "0:", ":5", "a:5", "0:-1", f"0:{2**63}")),
    (f"{PRUNE} 0s", "According to this ledger, no gate has read the journal"),
    (f"{PRUNE} soon", "--older-than is 'soon'; it must be a duration"),
    (f"{PRUNE} 7", "--older-than is '7'; it must be a time with"),
    (f"{PRUNE} '7 days' --lane 3", "has no lane 3; its lanes: 0, 7"),
    (f"{PRUNE} 7d --without a", "has no gate 'a'"),
    # Flows
    *(
        (f"flow {command} {name}", sentence)
        for command in ("show", "run")
        for name, sentence in (
            ("shop:broken", "Stage 'parse' (shop.py:13) reads the channel 'raw', which is not de"),
            ("shop:nothing", "The flow is 'shop:nothing', which is of type function; name a"),
            ("shop:absent", "has no 'absent'; name a flow that the module has"),
            ("shop", "write module:flow, such as shop.flows:orders"),
            ("none:flow", "none cannot be imported"),
        )
    ),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop with a second dead letter, which is dropped; beside it a journal of lanes 0 and 7."""
    folder = tmp_path_factory.mktemp("complaints")
    made = Shop(folder)
    with Ledger.open(made.url) as ledger:
        (letter,) = ledger.dead_letters.oldest()
        batch = ledger.batches.begin(planned(70, 71))
        convict(ledger, batch.batch_key, letter.letter)
        ledger.dead_letters.resolve(2, DeadLetterStatus.DROPPED, "a test order")
    journal = Journal.open(str(folder / "orders"), create=True)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 12))
    journal.writer(7).close()
    return made


@pytest.fixture
def folder(template: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with modules of a user, and a copy of the journal."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "letter_edits.py").write_text(LETTER_EDITS)
    shutil.copytree(template.folder / "orders", tmp_path / "orders")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("shop", "letter_edits"):
        sys.modules.pop(name, None)


@pytest.fixture
def shop(template: Shop, folder: Path) -> Shop:
    return template.copied_to(folder)


def state_of(folder: Path) -> tuple[list[str], list[Path]]:
    """Each row of the ledger, and each file beside it."""
    files = sorted(file for file in folder.rglob("*") if "__pycache__" not in file.parts)
    with closing(sqlite3.connect(folder / "headrace.db")) as ledger:
        rows = list(ledger.iterdump())
    return rows, [file for file in files if not file.name.startswith("headrace.db-")]


@pytest.mark.parametrize(("command", "sentence"), COMPLAINTS)
def test_what_is_wrong_is_told_in_one_sentence_and_nothing_is_changed(
    shop: Shop, folder: Path, command: str, sentence: str, complain: Complain
) -> None:
    before = state_of(folder)
    said = complain(shop.url, *shlex.split(command.format(folder=folder, shop=shop)))
    assert sentence in said
    assert "hunter2" not in said
    assert state_of(folder) == before


def test_a_ledger_of_a_newer_headrace_is_refused_by_every_command(
    shop: Shop, complain: Complain
) -> None:
    damage(shop.url, text("UPDATE headrace_version SET version_num = '9999'"))
    for command in (
        *("status", "verify", "batches", f"batches {shop.good}", "failures", "dead-letters list"),
        *("dead-letters export", "dead-letters drop 1 --why x"),
    ):
        assert "of a newer Headrace" in complain(shop.url, *command.split())


def test_commands_that_only_tell_open_the_ledger_for_reading_only(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    really_open = Ledger.open

    def spy(url: str, *, create: bool = True) -> Ledger:
        opened.append(create)
        return really_open(url, create=create)

    monkeypatch.setattr(Ledger, "open", spy)
    for command in (
        *("verify", "batches", f"batches {shop.good}", "failures", "dead-letters list"),
        *("dead-letters export", "dead-letters drop 77 --why none"),
    ):
        assert invoke(shop.url, *command.split()).exit_code in (0, 1, 3)
    assert opened == [False] * 7
