"""Logs over OTLP: as OpenTelemetry's own library encodes them, and what is wrong with others."""

import gzip
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from tests.receivers.serving import Served, in_loop, served

from headrace.receivers import HttpSettings
from headrace.receivers.http.http_message import HttpRejection, HttpRequest
from headrace.receivers.http.otlp import OtlpFormat

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}


def named(**values: Any) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in values.items()]


def record(body: str, **fields: Any) -> LogRecord:
    return LogRecord(
        time_unix_nano=1_700_000_000_000_000_001,
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
        severity_text="INFO",
        body=AnyValue(string_value=body),
        trace_id=bytes(range(16)),
        span_id=bytes(range(8)),
        **fields,
    )


def request(*bodies: str) -> ExportLogsServiceRequest:
    resource = ResourceLogs(schema_url="https://r")
    resource.resource.attributes.extend(named(name=AnyValue(string_value="till 7")))
    scope = ScopeLogs(log_records=[record(each) for each in bodies], schema_url="https://s")
    scope.scope.name = "kernel"
    resource.scope_logs.append(scope)
    return ExportLogsServiceRequest(resource_logs=[resource])


def logs(body: bytes) -> bytes:
    """A request in JSON with one log record of this body."""
    return b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % body


async def post(it: Served, body: bytes, headers: dict[str, str]) -> Any:
    return await it.client.post("/v1/logs", content=body, headers=headers)


@in_loop
async def test_each_log_record_is_a_record_that_says_all_about_it() -> None:
    async with served() as it:
        answer = await post(it, request("a", "b").SerializeToString(), PROTOBUF)
        assert (answer.status_code, answer.headers["content-type"]) == (
            200,
            "application/x-protobuf",
        )
        assert ExportLogsServiceResponse.FromString(answer.content) == ExportLogsServiceResponse()
        first, second = map(json.loads, it.journal.values)
        assert first == {
            "resourceLogs": [
                {
                    "resource": {
                        "attributes": [{"key": "name", "value": {"stringValue": "till 7"}}]
                    },
                    "schemaUrl": "https://r",
                    "scopeLogs": [
                        {
                            "scope": {"name": "kernel"},
                            "schemaUrl": "https://s",
                            "logRecords": [
                                {
                                    "timeUnixNano": "1700000000000000001",
                                    "severityNumber": 9,
                                    "severityText": "INFO",
                                    "body": {"stringValue": "a"},
                                    "traceId": "000102030405060708090a0b0c0d0e0f",
                                    "spanId": "0001020304050607",
                                }
                            ],
                        }
                    ],
                }
            ]
        }
        assert second["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["body"] == {
            "stringValue": "b"
        }


@in_loop
async def test_what_was_stored_can_be_sent_as_json_and_is_stored_the_same() -> None:
    async with served() as it:
        await post(it, request("a").SerializeToString(), PROTOBUF)
        answer = await post(it, it.journal.values[0], JSON)
        assert (answer.status_code, answer.json()) == (200, {})
        both = json.loads(it.journal.values[0])
        log = both["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        log.append(log[0] | {"body": {"stringValue": "gr\u00fcn"}})
        await post(
            it, gzip.compress(json.dumps(both).encode()), JSON | {"content-encoding": "gzip"}
        )
        assert it.journal.values[1] == it.journal.values[2] == it.journal.values[0]
        expected = it.journal.values[0].replace(b'"a"', '"gr\u00fcn"'.encode())
        assert it.journal.values[3] == expected


values = st.recursive(
    st.one_of(
        st.builds(lambda v: AnyValue(string_value=v), st.text()),
        st.builds(lambda v: AnyValue(bool_value=v), st.booleans()),
        st.builds(lambda v: AnyValue(int_value=v), st.integers(-(2**63), 2**63 - 1)),
        st.builds(lambda v: AnyValue(double_value=v), st.floats()),
        st.builds(lambda v: AnyValue(bytes_value=v), st.binary()),
    ),
    lambda inner: st.builds(
        lambda each: AnyValue(array_value=ArrayValue(values=each)), st.lists(inner, max_size=3)
    ),
    max_leaves=5,
)


def records_of(body: bytes, kind: dict[str, str] = PROTOBUF, most: int = 10**6) -> list[Any]:
    settings = HttpSettings(max_decompressed_bytes=most, max_records=1_000)
    headers = {name.encode(): [value.encode()] for name, value in kind.items()}
    form = OtlpFormat(HttpRequest("POST", b"/v1/logs", headers), settings)
    form.count(body)
    found = form.records(body, 0)
    return [] if found is None else found.batch.column("value").to_pylist()


@given(values)
def test_every_value_is_what_the_library_of_protocol_buffers_says_in_json(value: AnyValue) -> None:
    sent = request("a")
    sent.resource_logs[0].scope_logs[0].log_records[0].body.CopyFrom(value)
    (stored,) = records_of(sent.SerializeToString())
    log = json.loads(stored)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert json.dumps(log["body"]) == json.dumps(MessageToDict(value))


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    for kind in (PROTOBUF, JSON):
        try:
            records_of(body, kind)
        except HttpRejection as rejection:
            assert rejection.status == 400


@in_loop
async def test_a_request_without_log_records_is_right() -> None:
    async with served() as it:
        for body, kind in [(b"", PROTOBUF), (b"{}", JSON), (b'{"resourceLogs":[{}]}', JSON)]:
            assert (await post(it, body, kind)).status_code == 200
        assert it.journal.values == []


def test_a_field_that_nobody_knows_is_passed_over_unless_it_is_cut_short() -> None:
    for field in (b"\x10\x07", b"\x25\0\0\0\0", b"\x29" + bytes(8)):
        assert len(records_of(request("a").SerializeToString() + field)) == 1
        with pytest.raises(HttpRejection, match="cut short"):
            records_of(request("a").SerializeToString() + field[:-1])


@in_loop
async def test_a_body_cut_short_is_refused_whole() -> None:
    body = request("a", "b" * 100).SerializeToString()
    async with served() as it:
        for length in range(1, len(body)):
            answer = await post(it, body[:length], PROTOBUF)
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "application/x-protobuf"
            assert answer.content[2:].decode().startswith("The body is not an ExportLogsService")
        assert it.journal.values == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"resourceLogs":[', "not JSON, or is cut short"),
        (b"[" * 100_000, "not JSON, or is cut short"),
        (b'{"a":NaN}', "not JSON, or is cut short"),
        (b"[]", "no object"),
        (b'{"resource_logs":[]}', "resourceLogs is missing"),
        (b'{"resourceLogs":{}}', "resourceLogs is missing or no list"),
        (b'{"resourceLogs":[1]}', "no object"),
        (b'{"resourceLogs":[{"scope_logs":[]}]}', "scopeLogs is missing"),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[7]}]}]}', "no object"),
        (b'{"resourceLogs":[{"resource":"a","scopeLogs":[{"logRecords":[{}]}]}]}', "resource has"),
        (b'{"resourceLogs":[{"scopeLogs":[{"scope":[1],"logRecords":[{}]}]}]}', "scope has"),
        (b'{"resourceLogs":[{"schemaUrl":7,"scopeLogs":[{"logRecords":[{}]}]}]}', "no string"),
        (logs(b'{"stringValue":"\\ud800"}'), "half a surrogate pair"),
        (logs(b'{"stringValue":"a"},"\\udfff":1'), "half a surrogate pair"),
        (logs(b'{"doubleValue":1e400}'), "the number 1e400, beyond a double"),
        (logs(b'{"doubleValue":-1e999}'), "the number -1e999, beyond a double"),
    ],
)
def test_json_that_is_no_otlp_is_refused_in_one_sentence(body: bytes, words: str) -> None:
    with pytest.raises(HttpRejection) as refused:
        records_of(body, JSON)
    assert words in refused.value.sentence
    assert refused.value.status == 400


def log(**fields: Any) -> bytes:
    """A request in JSON with one log record that has these fields."""
    scope = {"logRecords": [fields]}
    return json.dumps({"resourceLogs": [{"scopeLogs": [scope]}]}).encode()


def attribute(**value: Any) -> bytes:
    return log(attributes=[{"key": "a", "value": value}])


IN_BASE64 = "AAECAwQFBgcICQoLDA0ODw=="


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (attribute(intValue=1.5), "intValue must be a whole number of 64 bits, as a string"),
        (attribute(intValue="1.5"), "intValue must be a whole number"),
        (attribute(intValue=2**63), "intValue must be a whole number"),
        (attribute(intValue=True), "intValue must be a whole number"),
        (attribute(boolValue="true"), "boolValue must be true or false"),
        (attribute(stringValue=1), "stringValue must be a string"),
        (attribute(doubleValue="1_0"), "doubleValue must be a number"),
        (attribute(bytesValue="a"), "bytesValue must be base64"),
        (attribute(arrayValue=[1]), "arrayValue has something in it that is no object"),
        (attribute(arrayValue={"values": {}}), "arrayValue has no list in it"),
        (attribute(arrayValue={"values": [{"intValue": 0.5}]}), "intValue must be"),
        (attribute(kvlistValue={"values": [{"key": 1}]}), "key must be a string"),
        (log(attributes={"a": 1}), "attributes has no list in it"),
        (log(attributes=["a"]), "attributes has something in it that is no object"),
        (log(body="a text"), "body has something in it that is no object"),
        (log(traceId=IN_BASE64), "traceId must be 32 hexadecimal digits"),
        (log(traceId="00" * 15), "traceId must be 32 hexadecimal digits"),
        (log(spanId=IN_BASE64[:12]), "spanId must be 16 hexadecimal digits"),
        (log(severityNumber="INFO"), "severityNumber must be a whole number, or a name of OTLP"),
        (log(severityNumber="9"), "severityNumber must be a whole number"),
        (log(severityNumber=9.0), "severityNumber must be a whole number"),
        (log(severityText=9), "severityText must be a string"),
        (log(timeUnixNano=-1), "timeUnixNano must be a whole number of nanoseconds"),
        (log(timeUnixNano="2026-11-27"), "timeUnixNano must be a whole number of nanoseconds"),
        (log(flags=2**32), "flags must be a whole number, 0 to 4294967295"),
        (
            b'{"resourceLogs":[{"resource":{"attributes":[{"value":{"intValue":[]}}]}}]}',
            "intValue must be",
        ),
        (
            b'{"resourceLogs":[{"scopeLogs":[{"scope":{"name":1},"logRecords":[{}]}]}]}',
            "name must be a string",
        ),
    ],
)
def test_a_value_in_json_that_the_collector_refuses_is_refused_by_its_field(
    body: bytes, sentence: str
) -> None:
    with pytest.raises(HttpRejection) as refused:
        records_of(body, JSON)
    assert refused.value.status == 400
    assert refused.value.sentence.startswith(sentence)
    assert refused.value.sentence.endswith(".")


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"severityNumber": "SEVERITY_NUMBER_WARN2"}, {"severityNumber": 14}),
        ({"severityNumber": 9, "timeUnixNano": 7}, None),
        ({"timeUnixNano": str(2**64 - 1), "flags": "1", "droppedAttributesCount": 1}, None),
        ({"traceId": "AB" * 16, "spanId": "", "body": None, "attributes": None}, None),
        ({"body": {"intValue": "-9223372036854775808"}}, None),
        ({"body": {"doubleValue": "NaN"}, "something": "of a later version"}, None),
        ({"body": {"arrayValue": {"values": [{"doubleValue": "1e3"}, {}]}}}, None),
        ({"body": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": 1}}]}}}, None),
        ({"body": {"bytesValue": "AQI="}}, None),
    ],
)
def test_what_the_collector_takes_in_json_is_taken(sent: Any, stored: Any) -> None:
    (record,) = records_of(log(**sent), JSON)
    log_record = json.loads(record)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert log_record == (stored or sent)


def test_what_would_grow_in_memory_is_refused() -> None:
    large = request("a")
    large.resource_logs[0].resource.attributes.extend(
        named(large=AnyValue(string_value="x" * 100_000))
    )
    scope = large.resource_logs[0].scope_logs[0]
    scope.log_records.extend(LogRecord() for _ in range(100))
    bomb = b'{"resourceLogs":[' + b"{}," * 300_000 + b"{}]}"
    single = request("x" * 1_100_000)
    many = request(*["a"] * 1_001)
    for body, kind in [
        (large.SerializeToString(), PROTOBUF),
        (bomb, JSON),
        (single.SerializeToString(), PROTOBUF),
        (many.SerializeToString(), PROTOBUF),
    ]:
        with pytest.raises(HttpRejection) as refused:
            records_of(body, kind)
        assert refused.value.status == 413


def test_a_small_body_has_parts_by_its_size_for_each_log_record_takes_two_bytes() -> None:
    for content_type in (b"application/json", b"application/x-protobuf"):
        request = HttpRequest("POST", b"/v1/logs", {b"content-type": [content_type]})
        form = OtlpFormat(request, HttpSettings())
        form.count(b"x" * 2_000)
        assert form.parts >= 500


@in_loop
async def test_an_export_that_is_repeated_under_its_message_id_is_stored_once() -> None:
    body = request("a", "b").SerializeToString()
    async with served() as it:
        for _ in range(2):
            answer = await post(it, body, PROTOBUF | {"headrace-message-id": "export 7"})
            assert answer.status_code == 200
        assert len(it.journal.values) == 2
        answer = await post(it, body, PROTOBUF | {"headrace-message-id": "x" * 201})
        assert (answer.status_code, answer.headers["content-type"]) == (
            400,
            PROTOBUF["content-type"],
        )


@in_loop
async def test_rejections_are_in_the_form_of_the_request() -> None:
    async with served(token="s3cret") as it:  # noqa: S106
        answer = await post(it, b"{}", JSON)
        assert (answer.status_code, "token" in answer.json()["message"]) == (401, True)
        answer = await post(it, b"", PROTOBUF)
        assert (answer.status_code, answer.content[:1]) == (401, b"\x12")
        allowed = {"authorization": "Bearer s3cret"}
        answer = await post(it, b"", {"content-type": "text/plain"} | allowed)
        assert (answer.status_code, "application/x-protobuf" in answer.json()["message"]) == (
            415,
            True,
        )
