"""Defects of receivers."""

from typing import Final

from tests.planted.plant import Planted

DEFECTS: Final = (
    Planted(
        "message ids of which one can be another's with its number",
        "receivers/id_window.py",
        '_SEPARATOR: Final = "\\0"',
        '_SEPARATOR: Final = ":"',
        "tests/receivers/test_deduplicator.py",
    ),
    Planted(
        "a delivery that is acknowledged while what it repeats is not durable",
        "receivers/deduplicator.py",
        "            await asyncio.wait(self._awaited)",
        "            await asyncio.sleep(0)",
        "tests/receivers/test_deduplicator.py tests/receivers/test_intake.py",
    ),
    Planted(
        "a wrong token that opens a receiver over HTTP",
        "receivers/http/http_receiver.py",
        'if scheme.lower() != "bearer" or name is None:',
        'if scheme.lower() != "bearer" and name is None:',
        "tests/receivers/test_http.py",
    ),
    Planted(
        "a receiver that stops, and answers as if the request were too large",
        "receivers/http/http_receiver.py",
        "raise HttpRejection(413 if intake.is_open else 503, str(error)) from error",
        "raise HttpRejection(413, str(error)) from error",
        "tests/receivers/test_http.py tests/receivers/test_http_limits.py",
    ),
    Planted(
        "a request behind one that closes its connection, which is taken too",
        "receivers/http/http_connection.py",
        'self._keeps = version == "1.1" and parser.should_keep_alive()',
        "self._keeps = True",
        "tests/receivers/test_http.py",
    ),
    Planted(
        "a compressed body that breaks off, and is taken",
        "receivers/http/http_body.py",
        "        decompressor.end()\n",
        "",
        "tests/receivers/test_http.py tests/receivers/test_http_limits.py",
    ),
    Planted(
        "a message whose records all have the number of its first one in the journal",
        "receivers/id_window.py",
        '"" if (first, count) == (0, 1) else f"{_SEPARATOR}{first}{_SEPARATOR}{count}"',
        '""',
        "tests/receivers/test_deduplicator.py",
    ),
    Planted(
        "logs whose scope is left out",
        "receivers/http/otlp.py",
        "            scope = _scope(InstrumentationScope.FromString(_small(part)))\n",
        "            InstrumentationScope.FromString(_small(part))\n",
        "tests/receivers/test_otlp.py",
    ),
    Planted(
        "a receiver that is not ready, and answers 200",
        "receivers/http/status_routes.py",
        'return json_answer({"error": trouble}, 503)',
        'return json_answer({"error": trouble})',
        "tests/receivers/test_lane_health.py",
    ),
    Planted(
        "a count of bytes that is one of records",
        "receivers/http/status_routes.py",
        '"Their keys, values and headers.", done.stored_bytes)',
        '"Their keys, values and headers.", done.stored_records)',
        "tests/receivers/test_status_routes.py",
    ),
    Planted(
        "a line without an end that is dropped in silence",
        "receivers/tcp.py",
        "        if self._lines.is_unfinished:\n            raise self._lines.cut_off()\n",
        "",
        "tests/receivers/test_line_sender.py tests/receivers/test_tcp.py",
    ),
    Planted(
        "a token that is refused because its line ends as Windows ends lines",
        "receivers/line_buffer.py",
        'return first.removesuffix(b"\\r"), others',
        "return first, others",
        "tests/receivers/test_line_sender.py tests/receivers/test_tcp.py",
    ),
    Planted(
        "an MQTT message that is acknowledged though it was not stored",
        "receivers/mqtt/mqtt_receiver.py",
        "                receipt.result()\n                connection.acknowledge(packets)\n",
        "                connection.acknowledge(packets)\n                receipt.result()\n",
        "tests/receivers/test_mqtt.py",
    ),
    Planted(
        "ids of MQTT messages that are ignored",
        "receivers/mqtt/mqtt_receiver.py",
        "        ids=[message.message_id for message in messages],\n",
        "",
        "tests/receivers/test_mqtt_message.py tests/receivers/test_mqtt.py",
    ),
    Planted(
        "a receiver on an executor that is restarted for ever",
        "receivers/spark/supervisor.py",
        "        return outcome.is_permanent or is_stopping\n",
        "        return is_stopping\n",
        "tests/receivers/spark/test_supervisor.py",
    ),
    Planted(
        "a task of an earlier job that is let in beside the new one",
        "receivers/spark/supervisor.py",
        "            if report.token != self._token:  # of a job that has ended just now\n"
        "                return Order.STOP\n",
        "",
        "tests/receivers/spark/test_supervisor.py",
    ),
    Planted(
        "memory that a sender which has gone keeps",
        "receivers/memory_budget.py",
        "                self._reserved_bytes -= wanted_bytes\n",
        "                pass\n",
        "tests/receivers/test_memory_budget.py",
    ),
    Planted(
        "an age of unread records in milliseconds",
        "receivers/journal_cap.py",
        "age_s = (wall_clock_ms() - came_ms(self._journal, lane, oldest, until)) / 1000",
        "age_s = wall_clock_ms() - came_ms(self._journal, lane, oldest, until)",
        "tests/receivers/test_journal_cap.py",
    ),
    Planted(
        "a lane that counts as in order after a block has failed",
        "receivers/lane_health.py",
        "                self._good_s = None\n            raise",
        "            raise",
        "tests/receivers/test_lane_health.py",
    ),
    Planted(
        "a receiver that slows down for a query which has not begun yet",
        "receivers/shared_rate.py",
        "stream.begun.get(own.lane, end)",
        "stream.begun.get(own.lane, 0)",
        "tests/receivers/test_shared_rate.py",
    ),
)
