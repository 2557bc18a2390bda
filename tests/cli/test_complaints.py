"""What the commands on a ledger say when something is wrong, and that most of them only read."""

import pytest
from sqlalchemy import text
from tests.cli.conftest import Complain
from tests.cli.outcomes import Shop, damage, invoke

from headrace.ledger import Ledger


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["batches", "--gate", "order"], "has no gate 'order'; the gates it has: orders."),
        (["batches", "--since", "soon"], "--since is 'soon'; it must be a time such as"),
        (["batches", "--until", "2"], "--until is '2'; it must be a time such as"),
        (["batches", "zz"], "has no batch 'zz'; `headrace batches` lists those it has"),
        (["batches", "' OR 1=1 --"], "has no batch"),
        (["batches", "0" * 32], "has no batch"),
        (
            ["batches", "abc", "--status", "dead"],
            "KEY is 'abc', which is one batch; name no filter with it.",
        ),
        (["batches", "--ledger", "sqlite:///none.db"], "There is no ledger"),
        (["batches", "--ledger", "postgresql://u:secret@127.0.0.1:1/db"], "cannot be reached"),
        (["failures", "--gate", "order"], "has no gate 'order'; the gates it has: orders."),
        (["failures", "--ledger", "sqlite:///none.db"], "There is no ledger"),
        (["verify", "--ledger", "sqlite:///none.db"], "There is no ledger"),
        (
            ["dead-letters", "list", "--gate", "order"],
            "has no gate 'order'; the gates it has: orders.",
        ),
        (
            ["dead-letters", "export", "--gate", "order"],
            "has no gate 'order'; the gates it has: orders.",
        ),
        (["dead-letters", "list", "--ledger", "sqlite:///none.db"], "There is no ledger"),
        (["dead-letters", "drop", "1", "--reason", " "], "--reason is empty; say why"),
        (
            ["dead-letters", "drop", "99999999999999999999", "--reason", "x"],
            "has no dead letter 9999",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_without_a_secret(
    shop: Shop,
    command: list[str],
    sentence: str,
    complain: Complain,
) -> None:
    said = complain(shop.url, *command)
    assert sentence in said
    assert "secret" not in said


def test_a_ledger_of_a_newer_headrace_is_refused_by_every_command(
    shop: Shop,
    complain: Complain,
) -> None:
    damage(shop.url, text("UPDATE headrace_version SET version_num = '9999'"))
    for command in (
        ["verify"],
        ["batches"],
        ["batches", shop.good],
        ["failures"],
        ["dead-letters", "list"],
        ["dead-letters", "export"],
        ["dead-letters", "drop", "1", "--reason", "x"],
    ):
        assert "of a newer Headrace" in complain(shop.url, *command)


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
        ["verify"],
        ["batches"],
        ["batches", shop.good],
        ["failures"],
        ["dead-letters", "list"],
        ["dead-letters", "export"],
        ["dead-letters", "drop", "77", "--reason", "there is none"],
    ):
        assert invoke(shop.url, *command).exit_code in (0, 1, 3)
    assert opened == [False] * 7


# Many spans and findings
