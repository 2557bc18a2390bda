"""``python -m headrace.operate.local`` downloads the jars of the Kafka broker in advance."""

import sys

from headrace.errors import SetupError
from headrace.operate.local.java import find_java, kafka_server_jars

try:
    kafka_server_jars(find_java(), print)
except SetupError as error:
    sys.exit(str(error))
