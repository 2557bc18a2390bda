"""The demo's orders."""

import json

from headrace.cli.demo.orders import PARTITION_WEIGHTS, OrderBook


def test_orders_are_numbered_in_their_order_and_the_same_for_the_same_seed() -> None:
    first, second = (OrderBook("shop", 7, 6) for _ in range(2))
    written = [first.write(1_000) for _ in range(50)]
    assert written == [second.write(1_000) for _ in range(50)]
    assert [json.loads(order)["id"] for order, _ in written] == list(range(50))
    assert first.written == 50


def test_an_order_is_worth_what_its_items_cost() -> None:
    book = OrderBook("shop", 7, 1)
    for _ in range(50):
        order = json.loads(book.write(1_000)[0])
        total = sum(item["quantity"] * item["price"] for item in order["items"])
        assert order["total"] == round(total, 2) > 0
        assert (order["shop"], order["time_ms"]) == ("shop", 1_000)


def test_partitions_get_unequal_parts_and_each_gets_some() -> None:
    book = OrderBook("shop", 7, 9)
    counts = [0] * 9
    for _ in range(5_000):
        counts[book.write(0)[1]] += 1
    assert min(counts) > 0
    assert counts[0] > 3 * counts[len(PARTITION_WEIGHTS) - 1]
