"""Five orders for a topic, and a record that is none, between them.

Run it: python send_orders.py localhost:9092 orders
"""

import json
import sys

from confluent_kafka import Producer


def main(kafka: str, topic: str) -> None:
    """Send them, and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(1, 6):
        order = {"id": number, "customer": f"customer {number}", "amount": 9.5 * number}
        producer.produce(topic, json.dumps(order), key=str(number))
        if number == 3:
            producer.produce(topic, "no order", key="none")
    producer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
