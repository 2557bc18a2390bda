"""Dead batches that are dropped, with a reason."""

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
