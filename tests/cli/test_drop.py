"""Dead batches that are dropped, with a reason."""

from tests.cli.conftest import Complain
from tests.cli.outcomes import Shop, invoke

from headrace.ledger import Ledger


def test_a_dropped_batch_is_listed_no_more_and_says_why(shop: Shop) -> None:
    assert shop.dead[:8] in invoke(shop.url, "failures").stdout
    done = invoke(shop.url, "drop", shop.dead[:12], "--reason", " nobody needs it ")
    assert (done.exit_code, done.stdout) == (0, f"Batch {shop.dead} is dropped.\n")
    assert shop.dead[:8] not in invoke(shop.url, "failures").stdout
    assert "nobody needs it" in invoke(shop.url, "batches", shop.dead).stdout
    with Ledger.open(shop.url, create=False) as ledger:
        batch = ledger.batch(shop.dead)
    assert batch is not None
    assert batch.resolution == "nobody needs it"


def test_what_cannot_be_dropped_is_told_and_nothing_is(
    shop: Shop,
    complain: Complain,
) -> None:
    def said(*arguments: str) -> str:
        return complain(shop.url, "drop", *arguments)

    assert "is failed; only one that is dead" in said(shop.dead, shop.failed, "--reason", "x")
    assert "--reason is empty" in said(shop.dead, "--reason", " ")
    assert "has no batch 'zz'" in said("zz", "--reason", "x")
    assert shop.dead[:8] in invoke(shop.url, "failures").stdout
    invoke(shop.url, "drop", shop.dead, "--reason", "first")
    assert "was dropped already (first)" in said(shop.dead, "--reason", "second")
