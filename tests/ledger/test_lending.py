"""What is lent of the ledger's database: its transaction is not ended."""

import pytest

from headrace.ledger.lending import transaction_end

ENDS = {
    "commit": "COMMIT",
    " ;; Commit And Chain": "COMMIT",
    "set local work_mem = '8MB'; commit": "COMMIT",
    "select 1;commit;begin": "COMMIT",
    "select 1 -- ; rollback\n; end": "END",
    "select 1; /* a /* b */ */ abort": "ABORT",
    "select 1; -- it's\n rollback": "ROLLBACK",
    "select 'it''s'; rollback work": "ROLLBACK",
    r"select e'it\'s'; rollback; select '": "ROLLBACK",
    r"select 'C:\'; rollback; select '": "ROLLBACK",
    "select $$'$$; prepare transaction 'a'": "PREPARE TRANSACTION",
    "select 1 as a$b; commit; select 2 as c$b": "COMMIT",
    "select 1; start /* a */ transaction": "START TRANSACTION",
    "select 1; begin": "BEGIN",
    "select '; commit": "COMMIT",  # no statement, so nothing is refused that could be run
}

HARMLESS = [
    "select 1; select 2",
    "insert into notes values ('done; commit')",
    "insert into notes values ('it''s done; commit')",
    r"insert into notes values (E'it\'s done; commit')",
    'select 1 as "a; commit"',
    "do $$ begin perform 1; end $$",
    "do $a$ begin perform '$$; commit'; end $a$",
    "select 1 -- ; commit",
    "select 1 /* ; commit /* ; commit */ ; commit */",
    "select case when a then 1 end from b; select 2",
    "savepoint mine; rollback to mine; release mine",
    "savepoint mine; rollback work to savepoint mine",
    "select 1; rollback transaction to mine",
    "select commit from batches; select committed",
]


@pytest.mark.parametrize(("sql", "end"), ENDS.items())
def test_what_would_end_a_transaction_is_found_wherever_it_stands(sql: str, end: str) -> None:
    assert transaction_end(sql) == end


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_would_end_no_transaction_may_be_executed(sql: str) -> None:
    assert transaction_end(sql) is None
