"""``headrace batches``, ``failures``, ``drop`` and ``prune``: what they list, change and refuse."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.gate.ledger.samples import convict
from tests.operate.cli.conftest import Complain
from tests.operate.cli.outcomes import (
    ERROR,
    LETTER,
    NOW_MS,
    Shop,
    damage,
    invoke,
    planned,
    rows,
    told,
)
from tests.services.ledgers import gated_ledger, succeed

from headrace.gate.control.parts import Progress
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetterStatus
from headrace.gate.ledger.transitions import Status

NEWEST_FIRST = ("open", "isolated", "dead", "left", "busy", "failed", "good")
SINCE, UNTIL = "2023-11-14T22:13:22Z", "2023-11-14T22:13:24Z"


def add_clicks(shop: Shop) -> str:
    """A gate with a batch that has failed; its key."""
    with Ledger.open(shop.url, clock=lambda: NOW_MS) as ledger:
        ledger.gates.declare("clicks", interval_ms=1, source="kafka", estimator="pid")
        key = ledger.batches.begin(planned(0, 10, gate="clicks")).batch_key
        ledger.batches.fail(key, ERROR)
    return key


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ("", NEWEST_FIRST),
        ("--status dead", ("dead",)),
        ("--status failed --status backfilling", ("left", "busy", "failed")),
        ("--limit 2", ("open", "isolated")),
        (f"--since {SINCE} --until {UNTIL}", ("busy", "failed")),
        ("--since 1h", ()),
    ],
)
def test_batches_are_filtered(shop: Shop, options: str, batches: tuple[str, ...]) -> None:
    found = [each["batch_key"] for each in rows(shop.url, f"batches {options}")]
    assert found == [getattr(shop, name) for name in batches]
    if not found:
        assert told(shop.url, f"batches {options}") == "There is no such batch.\n"


def test_a_list_that_is_cut_says_so(shop: Shop) -> None:
    assert "newest 3; --limit shows more" in told(shop.url, "batches --limit 3")
    assert "shows more" not in told(shop.url, "batches --limit 9")
    cut = told(shop.url, "failures --limit 2", 3)
    assert "More than 2 batches, of which these are the first; --limit shows more:" in cut
    assert shop.left[:8] not in cut
    assert len(rows(shop.url, "failures --limit 2", 3)) == 3


def test_batches_of_several_gates_name_theirs(shop: Shop) -> None:
    assert "gate" not in told(shop.url, "batches")
    clicks = add_clicks(shop)
    everything = told(shop.url, "batches").splitlines()
    assert everything[0].split()[2] == "gate"
    assert any(each.split()[1] == "clicks" for each in everything)
    assert "gate" not in told(shop.url, "batches clicks")
    assert "clicks" in told(shop.url, "failures", 3)
    alone = told(shop.url, "failures clicks", 3)
    assert clicks[:8] in alone
    assert "dead letter" not in alone


def test_one_batch_is_told_with_its_ranges_by_the_beginning_of_its_key(shop: Shop) -> None:
    (full,) = rows(shop.url, f"batches {shop.isolated[:8].upper()}")
    assert (full["batch_key"], full["rejected"]) == (shop.isolated, 1)
    (planned_range,) = full["ranges"]
    place = {"topic": "orders", "partition": 0, "start": 50, "until": 60}
    assert planned_range == {**place, "latest": 100, "reason": "share", "topic_id": None}
    for key in (shop.isolated, shop.isolated[:8]):
        assert "orders-0 [50, 60)" in told(shop.url, f"batches {key}")


def test_a_batch_in_parts_says_what_is_left(shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        ledger.batches.claim(shop.failed, "me", 1_000)
        done = Progress(done=frozenset(["0", "10"]), runs=7)
        ledger.batches.keep_progress(shop.failed, "me", done)
        ledger.batches.put_back(shop.failed, "me")
    (full,) = rows(shop.url, f"batches {shop.failed}")
    assert (full["done_records"], full["records_left"]) == (8, 2)
    one = " ".join(told(shop.url, f"batches {shop.failed}").split())
    assert "in parts 8 records done, 2 left, 7 runs" in one


@pytest.mark.integration
@pytest.mark.parametrize(
    "trick", ["\x1b[2J", "[/red]", "[bold]", "\r", "\N{RIGHT-TO-LEFT OVERRIDE}"]
)
def test_what_a_terminal_or_its_painter_would_obey_is_shown_and_not_done(
    tmp_path: Path, trick: str
) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        for gate in (f"a{trick}", "b"):
            ledger.gates.declare(gate, interval_ms=1, source="kafka", estimator="pid")
        first = ledger.batches.begin(planned(0, 10, f"a{trick}", checkpoint_id=trick)).batch_key
        ledger.batches.fail(first, ValueError(f"no {trick}"))
        second = ledger.batches.begin(planned(10, 11, f"a{trick}", checkpoint_id=trick)).batch_key
        convict(ledger, second, replace(LETTER, topic=f"t{trick}", value=trick.encode()))
    printable = "".join(c if c.isprintable() else " " for c in trick)
    for command in ("batches", f"batches {first}", "failures", "verify", "dead-letters list"):
        shown = invoke(url, *command.split())
        assert isinstance(shown.exception, SystemExit | None)
        assert printable in shown.stdout
        assert (trick in shown.stdout) == trick.isprintable()


def test_the_beginning_of_several_keys_is_refused(shop: Shop, complain: Complain) -> None:
    damage(shop.url, text("UPDATE batch SET batch_key = 'feed' || substr(batch_key, 5)"))
    said = complain(shop.url, "batches", "feed")
    assert "has several batches whose key begins with 'feed', such as" in said
    assert "give more digits" in said


def test_a_word_is_the_gate_of_that_name_unless_a_batch_begins_so_too(
    shop: Shop, complain: Complain
) -> None:
    with Ledger.open(shop.url) as ledger:
        for name in ("feed", "beef"):
            ledger.gates.declare(name, interval_ms=1_000, source="kafka", estimator="pid")
        good = ledger.batches.with_prefix(shop.good)[0].batch_key
    move = text("UPDATE batch SET batch_key = 'feed' || substr(batch_key, 5) WHERE batch_key = :it")
    damage(shop.url, move.bindparams(it=good))
    said = complain(shop.url, "batches", "feed")
    assert f"'feed' is a gate, and also begins the key of batch feed{good[4:]}" in said
    assert "no such batch" in told(shop.url, "batches feed --since 2000-01-01")
    assert f"feed{good[4:]}" in told(shop.url, f"batches feed{good[4:]}")
    assert "no such batch" in told(shop.url, "batches beef")


@pytest.mark.parametrize(
    "options",
    [*(f"--limit {n}" for n in ("0", "-1", "99999999999999999999", "many"))],
)
def test_a_value_that_is_none_is_a_usage_error(shop: Shop, options: str) -> None:
    assert invoke(shop.url, "batches", *options.split()).exit_code == 2


def test_a_status_that_does_not_exist_is_a_usage_error_that_names_them(shop: Shop) -> None:
    refused = invoke(shop.url, "batches", "--status", "lost")
    assert refused.exit_code == 2
    assert all(status in refused.output for status in Status)


@pytest.mark.parametrize(
    ("options", "batches", "letters"),
    [
        ("", ("failed", "busy", "left", "dead"), 1),
        ("--error shop.PriceError", ("failed", "busy", "left"), 1),
        ("--error PriceError", ("failed", "busy", "left"), 1),
        ("--error DataLossError", ("dead",), 0),
        ("--error LossError", (), 0),
        ("--error %", (), 0),
        (f"--since {UNTIL}", ("left", "dead"), 1),
        (f"--until {UNTIL}", ("failed", "busy"), 0),
        (f"--since {UNTIL} --error PriceError", ("left",), 1),
    ],
)
def test_failures_are_listed_earliest_first_and_filtered(
    shop: Shop, options: str, batches: tuple[str, ...], letters: int
) -> None:
    found = rows(shop.url, f"failures {options}", 3 if batches or letters else 0)
    keys = [each["batch_key"] for each in found if each["what"] == "batch"]
    assert keys == [getattr(shop, name) for name in batches]
    assert [each["what"] for each in found[len(keys) :]] == ["dead letter"] * letters
    if not found:
        assert told(shop.url, f"failures {options}") == "There is no such failure.\n"


def test_nothing_that_failed_is_0(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with gated_ledger(url) as ledger:
        assert told(url, "batches") == "The ledger has no batch yet.\n"
        succeed(ledger, planned(0, 10))
        ledger.batches.begin(planned(10, 20))
    assert "Nothing is unresolved" in told(url, "failures")
    assert rows(url, "failures") == []


def test_a_letter_alone_is_3_until_it_is_resolved_and_so_is_a_dead_batch(
    shop: Shop, complain: Complain
) -> None:
    with Ledger.open(shop.url) as ledger:
        for key in (shop.failed, shop.left):
            ledger.batches.claim(key, "me", 1_000)
            ledger.batches.backfilled(key, "me")
        ledger.batches.backfilled(shop.busy, "a backfill")
        drop = ["drop", shop.dead[:12], "--why", " nobody needs it ", "--by", "Ada"]
        assert invoke(shop.url, *drop).stdout == f"Batch {shop.dead} is dropped.\n"
        (letter,) = rows(shop.url, "failures", 3)
        ledger.dead_letters.resolve(
            letter["dead_letter_id"], DeadLetterStatus.DROPPED, "a test order"
        )
        assert rows(shop.url, "failures") == []
    (dead,) = rows(shop.url, f"batches {shop.dead}")
    assert dead["resolution"] == "nobody needs it (Ada)"
    with Ledger.open(shop.url) as ledger:
        (done, *_) = ledger.operator_limits.history(None)
        assert (done.kind, done.by, done.why) == ("drop batch", "Ada", "nobody needs it")
    assert "nobody needs it" in told(shop.url, f"batches {shop.dead}")
    assert "was dropped already (nobody needs it (Ada))" in complain(shop.url, *drop)


def test_what_ended_long_ago_is_deleted_and_verify_counts_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    old = [planned(start, start + 10) for start in (0, 10, 20)]
    gated_ledger(url, "orders", *old, clock=lambda: 1_000).close()
    with Ledger.open(url) as ledger:
        succeed(ledger, planned(30, 40))
    prune = "prune --older-than '30 days'"
    assert told(url, prune) == "Deleted: 3 batches and 0 rates.\n"
    ((span,),) = [each["spans"] for each in rows(url, "verify")]
    assert (span["pruned"], span["processed"]) == (30, 10)
    assert rows(url, prune) == [{"batches": 0, "rates": 0}]


def test_what_is_unresolved_stays_whatever_its_age(shop: Shop) -> None:
    before = rows(shop.url, "failures", 3)
    told(shop.url, "prune --older-than '1 ms'")
    assert rows(shop.url, "failures", 3) == before != []


def test_what_a_batch_rejected_is_counted_and_shown(shop: Shop) -> None:
    with Ledger.open(shop.url, clock=lambda: NOW_MS) as ledger:
        letters = [replace(LETTER, partition=0, offset=offset) for offset in (61, 62, 68)]
        ledger.batches.attach(shop.open, 9, owner="me", lease_ms=1_000)
        with ledger.batches.transaction(shop.open, "me", records=10, rejected=lambda: letters):
            pass
    first, *others = rows(shop.url, "batches")
    assert (first["batch_key"], first["rejected"]) == (shop.open, 3)
    assert [each["rejected"] for each in others] == [1, 0, 0, 0, 0, 0]
    assert "3 records rejected · " in told(shop.url, "batches")
    one = " ".join(told(shop.url, f"batches {shop.open}").split())
    assert "records 7 processed, 10 planned" in one
    assert "rejected 3 records; see headrace dead-letters list" in one
    verified = told(shop.url, "verify", 3)
    assert "4 rejected" in verified
    assert "processed, but not this record: " in " ".join(verified.split())
    assert told(shop.url, "dead-letters list").count("orders-0 at 6") == 3


def test_what_ended_lately_is_not_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    gated_ledger(url, "orders", planned(0, 10), clock=lambda: 1_000).close()
    with Ledger.open(url) as ledger:
        for start in (10, 20):
            succeed(ledger, planned(start, start + 10))
    assert told(url, "prune --older-than '30 days'") == "Deleted: 1 batch and 0 rates.\n"
