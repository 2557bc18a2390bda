"""Five orders for a topic, and a record that is none, between them.

    python send_orders.py localhost:9092 orders

Any other producer does as well.
"""

import json
import sys

from confluent_kafka import Producer

kafka, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": kafka})
for number in range(1, 6):
    order = {"id": number, "customer": f"customer {number % 2}", "amount": 9.5 * number}
    producer.produce(topic, json.dumps(order))
    if number == 3:
        producer.produce(topic, "no order")
producer.flush()
