"""Needs for attention: their urgency, their cause, and groups of like ones."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operate.cli.histories import (
    INTERVAL_MS,
    NOW_MS,
    a_batch,
    a_gate,
    a_receiver,
    text_of,
    with_lags,
)

from headrace.gate.control.limits import OperatorAction, OperatorActionKind, OperatorLimits
from headrace.gate.ledger.error_report import FAILS_AS_A_WHOLE, ErrorReport
from headrace.gate.ledger.gates import GateQuery
from headrace.gate.ledger.records import Unresolved
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.gate_view import GateView
from headrace.operate.cli.status import status_view
from headrace.operate.status.lags import GateLag
from headrace.operate.status.moment import take_snapshot
from headrace.operate.status.needs import HANGS, SHORTEST_HANGS_MS, gate_needs
from headrace.operate.status.parts import IsolatedSnapshot
from headrace.operate.status.states import GateHistory, GateState, Need, Urgency, Where, grouped

HANGS_MS = max(HANGS * INTERVAL_MS, SHORTEST_HANGS_MS)


@pytest.mark.parametrize(
    ("running_ms", "urgency"), [(HANGS_MS, Urgency.WATCH), (HANGS_MS + 1, Urgency.NOW)]
)
def test_a_batch_that_is_late_is_watched_and_one_that_hangs_needs_somebody_now(
    running_ms: int, urgency: Urgency
) -> None:
    running = a_batch(1, NOW_MS - running_ms, 1_000, status=Status.IN_PROGRESS)
    snapshot = take_snapshot(GateHistory(a_gate(), (running,)), NOW_MS)
    assert snapshot.state is GateState.OVERDUE
    assert [need.urgency for need in snapshot.needs] == [urgency]


@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize(
    ("started_ms", "lease_ms", "is_abandoned"),
    [(-5_000, 30_000, True), (5_000, -1, True), (5_000, 30_000, False)],
)
def test_a_batch_in_progress_that_no_process_runs_is_a_need(
    started_ms: int, lease_ms: int, is_abandoned: bool, is_newest: bool
) -> None:
    """An earlier process ran it, or the lease of its owner is over; one that runs is none."""
    since_ms = NOW_MS - 10_000
    query = GateQuery("me", None, None, "shop.py", None, None, since_ms, NOW_MS + 9_999, 1)
    open_batch = replace(
        a_batch(1, NOW_MS - 20_000, 10, status=Status.IN_PROGRESS),
        start_time_ms=since_ms + started_ms,
        lease_until_ms=NOW_MS + lease_ms,
    )
    batches = [open_batch] if is_newest else [a_batch(2, NOW_MS - 1_000, 10), open_batch]
    snapshot = take_snapshot(GateHistory(a_gate(), tuple(batches), query=query), NOW_MS)
    sentences = [need.sentence for need in snapshot.needs if need.kind == "abandoned batches"]
    assert bool(sentences) == is_abandoned
    if is_abandoned:
        assert sentences == [
            "1 batch is in progress, and run by no process; it fails when its lease ends."
        ]


def test_a_batch_that_is_late_says_whether_its_handler_was_called() -> None:
    running = a_batch(1, NOW_MS - HANGS_MS, 1_000, status=Status.IN_PROGRESS)
    for batch, words in (
        (running, "its handler has not returned, and Spark's page shows whether it reads or"),
        (replace(running, query_batch_id=None), "Spark has not called its handler yet."),
    ):
        (need,) = take_snapshot(GateHistory(a_gate(), (batch,)), NOW_MS).needs
        assert words in need.sentence


def test_no_need_has_status_as_its_command() -> None:
    silent = replace(with_lags(900), receivers=(a_receiver(0, 0.0, age_ms=600_000),))
    refusing = replace(silent, receivers=(a_receiver(0, 0.0, refusing="It is full."),))
    commands = [
        need.command
        for history in (silent, refusing)
        for need in take_snapshot(history, NOW_MS).needs
    ]
    assert commands == [
        "headrace receive --help",
        "headrace why orders",
    ]


def test_a_command_can_be_pasted_whatever_a_gate_is_called() -> None:
    behind = with_lags(9_000, 9_500, 10_000)
    for name in ("two words", "it's", "x; rm -rf /", "$(reboot)", "größe"):
        history = replace(behind, gate=replace(behind.gate, name=name))
        (need,) = take_snapshot(history, NOW_MS).needs
        assert shlex.split(need.command) == ["headrace", "why", name]


OLDER = (
    "The query's checkpoint is at offset 5 of orders-0, but the ledger has batches up to offset 9."
    " So the checkpoint is an older copy; restore the newest copy. Or continue at the ledger's"
    " position by `headrace adopt orders f761fc68c0ffee00 --ledger"
    " sqlite:////srv/shop/orders/headrace.db --why TEXT`, and start again."
)


def ended_by(error: str) -> GateHistory:
    history = with_lags(900)
    gate = replace(history.gate, ended_ms=NOW_MS, ended="failed", ended_error=error)
    return replace(history, gate=gate)


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (
            f"headrace.errors.OptionError: {OLDER}",
            "headrace adopt orders f761fc68c0ffee00 --ledger sqlite:////srv/shop/orders/headrace.db"
            " --why TEXT",
        ),
        ("headrace.errors.OptionError: There is no such option.", "headrace failures orders"),
        ("ValueError: a record says `headrace drop 1`", "headrace failures orders"),
    ],
)
def test_a_query_that_was_refused_needs_the_command_that_the_refusal_names(
    error: str, command: str
) -> None:
    (need,) = take_snapshot(ended_by(error), NOW_MS).needs
    assert need.command == command


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize(
    "history",
    [
        ended_by(f"headrace.errors.OptionError: {OLDER}"),
        replace(
            with_lags(900),
            new_checkpoint="its query began a new checkpoint, and goes on where the ledger says"
            f" that the last one stood: {'a-long-topic-of-the-shop' * 9}-0 at 5",
        ),
    ],
)
def test_no_command_is_cut_however_narrow_the_terminal_is(history: GateHistory, width: int) -> None:
    """A word alone may be broken, where it is longer than a line."""
    snapshot = take_snapshot(history, NOW_MS)
    (need,) = snapshot.needs
    for picture in (GateView(snapshot), status_view([snapshot, snapshot], [])):
        shown = "".join(text_of(picture, width).replace("│", " ").split())
        assert need.command.replace(" ", "") in shown
        assert shown.count("`") % 2 == 0


def test_a_gate_with_a_new_checkpoint_says_how_all_is_processed_again() -> None:
    history = replace(with_lags(900), new_checkpoint="it goes on at 5")
    (need,) = take_snapshot(history, NOW_MS).needs
    assert need.command == "headrace restart orders --why TEXT"
    assert need.sentence == (
        f"It goes on at 5; to process everything again, run `{need.command}`, and start with a new"
        " checkpoint once more."
    )


def test_nobody_is_said_to_run_a_failed_batch_again() -> None:
    """A program with on_failure="stop" runs none."""
    history = replace(with_lags(900), unresolved=Unresolved(failed=1), failed_error="no (KeyError)")
    (need,) = take_snapshot(history, NOW_MS).needs
    assert need.sentence == "1 failed batch: no (KeyError)"


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        ("kafka", "wait to be sent again, or dropped."),
        ("journal", "wait to be exported and sent to a receiver, or dropped."),
    ],
)
def test_dead_letters_wait_for_what_can_be_done_with_them(source: str, ends: str) -> None:
    history = replace(with_lags(900), unresolved=Unresolved(letters=180))
    history = replace(history, gate=replace(history.gate, source=source))
    (need,) = take_snapshot(history, NOW_MS).needs
    assert need.sentence == f"180 dead letters {ends}"


def isolated(batches: int, of: int = 40, message: str = "no number.") -> GateHistory:
    """The newest batches of these had records for which the handler raised."""
    history = with_lags(*[900] * of)
    keys = [each.batch_key for each in history.batches[:batches]]
    error = ErrorReport("shop.PriceError", message, "a trace")
    return replace(history, isolated=dict.fromkeys([*keys, "an older batch"], error))


def test_more_than_ten_batches_with_records_found_bad_by_exceptions_are_a_hint() -> None:
    few = take_snapshot(isolated(10), NOW_MS)
    assert few.isolated == IsolatedSnapshot(batches=10, of=40, error="no number (PriceError)")
    assert few.needs == ()
    assert take_snapshot(isolated(0), NOW_MS).isolated is None
    (hint,) = take_snapshot(isolated(11), NOW_MS).needs
    assert (hint.kind, hint.urgency, hint.where) == (
        "bad records",
        Urgency.WATCH,
        Where.FAILURES,
    )
    assert hint.sentence == (
        "The handler raised on single records in 11 of the last 40 batches (last no number"
        " (PriceError)), and is run many times to find them: have it batch.reject them, or decode"
        " at the source with gate.read(..., decode=...), as docs/failures.md says."
    )
    assert hint.command == "headrace dead-letters list orders"


def test_batches_that_fail_as_a_whole_are_named_with_their_error() -> None:
    history = isolated(0)
    message = f"{FAILS_AS_A_WHOLE}: one key is there twice"
    error = ErrorReport("psycopg.errors.CardinalityViolation", message, "")
    wholes = [replace(each, error=error) for each in history.batches[:11]]
    batches = (*wholes, *history.batches[11:])
    (hint,) = take_snapshot(replace(history, batches=batches, isolated={}), NOW_MS).needs
    assert hint.sentence.startswith(
        f"11 of the last 40 batches were run in parts: {message} (CardinalityViolation); correct"
    )
    assert hint.command == "headrace batches orders"


def test_a_hint_has_the_beginning_of_an_exception() -> None:
    snapshot = take_snapshot(isolated(11, message="x" * 500 + "\nits second line"), NOW_MS)
    assert snapshot.isolated is not None
    assert snapshot.isolated.error == f"{'x' * 69}… (PriceError)"


def need(about: str, kind: str, urgency: Urgency, records: int = 0) -> Need:
    return Need(kind, urgency, about, f"{kind}.", Where.GATE, f"headrace why {about}", records)


def test_needs_of_one_kind_are_one_sentence_and_the_most_urgent_kind_is_first() -> None:
    behind, letters = "falling behind", "dead letters"
    needs = [
        need("a", behind, Urgency.WATCH, 100),
        need("b", letters, Urgency.SOON),
        need("c", behind, Urgency.WATCH, 1_100),
        need("d", "overdue", Urgency.WATCH, 9_000),
        need("e", behind, Urgency.WATCH),
    ]
    groups = grouped(needs)
    assert [group.sentence for group in groups] == [
        "1 gate: dead letters.",
        "3 gates: falling behind, with 1,200 records.",
        "1 gate: overdue, with 9,000 records.",
    ]
    assert [each.about for each in groups[1].needs] == ["c", "a", "e"]


def test_two_needs_of_one_gate_are_not_two_gates() -> None:
    held = [need("a", "waiting senders", Urgency.SOON) for _ in range(2)]
    assert grouped(held)[0].sentence == "1 gate: waiting senders."


@given(
    st.lists(
        st.builds(
            need,
            st.sampled_from("abc"),
            st.sampled_from(["dead letters", "overdue", "advice", "falling behind"]),
            st.sampled_from(Urgency),
            st.integers(0, 9),
        )
    )
)
def test_groups_have_each_need_once_and_get_less_urgent(needs: list[Need]) -> None:
    groups = grouped(needs)
    assert sorted(map(repr, needs)) == sorted(repr(each) for g in groups for each in g.needs)
    assert [group.urgency for group in groups] == sorted(group.urgency for group in groups)
    assert len({group.kind for group in groups}) == len(groups)
    assert all(group.sentence.endswith(".") for group in groups)


def paused(history: GateHistory) -> GateHistory:
    action = OperatorAction(
        1, "orders", OperatorActionKind.PAUSE, "Ada", "a migration", NOW_MS - 60_000
    )
    return replace(history, operator_limits=OperatorLimits("orders", NOW_MS, hold=action))


def test_a_paused_gate_whose_last_batch_runs_is_paused_and_not_behind() -> None:
    behind = with_lags(9_000, 9_500, 10_000)
    running = a_batch(3, NOW_MS - 500, 10_500, status=Status.IN_PROGRESS)
    behind = replace(behind, batches=(running, *behind.batches))
    assert take_snapshot(behind, NOW_MS).state is GateState.FALLING_BEHIND
    (only,) = take_snapshot(paused(behind), NOW_MS).needs
    assert (only.kind, only.command) == ("paused", "headrace resume orders")


def test_what_a_pause_brings_about_says_that_the_gate_is_paused() -> None:
    full = "journal 'events' holds 2.0 GB, and its cap is 2.0 GB."
    history = replace(
        paused(with_lags(9_000, 9_500)), receivers=(a_receiver(0, 0.0, refusing=full),)
    )
    snapshot = take_snapshot(history, NOW_MS, GateLag(seconds=9e3, retention_left_s=60.0))
    by_whom = "; the gate is paused by Ada: a migration, since 22:12:20 UTC."
    assert [each.sentence for each in snapshot.needs if by_whom in each.sentence] == [
        f"Retention deletes records that are not read in 1 min 0 s{by_whom}",
        f"Senders wait: {full.rstrip('.')}{by_whom}",
    ]


def test_who_has_paused_a_gate_is_given_no_advice_on_its_rate() -> None:
    advised = replace(take_snapshot(with_lags(9_000), NOW_MS), advice=("Lower minRate.",))
    assert "advice" in [each.kind for each in gate_needs(advised)]
    held = replace(advised, state=GateState.PAUSED)
    assert "advice" not in [each.kind for each in gate_needs(held)]
