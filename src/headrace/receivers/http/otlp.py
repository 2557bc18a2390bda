"""Logs as OpenTelemetry's programs send them: OTLP over HTTP, in Protocol Buffers or JSON.

A record's value is again a request of OTLP in JSON, with one log record, its resource and its
scope: so it says all that was sent, and whatever reads OTLP in JSON reads it.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final

from headrace.core.system import needs_extra
from headrace.journal.records import Records
from headrace.receivers.http.http_body import message_id_of
from headrace.receivers.http.http_message import HttpRejection, HttpRequest
from headrace.receivers.settings import HttpSettings

with needs_extra("otlp", "Receiving logs by OTLP"):
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"

_MAX_PART_BYTES: Final = 1024 * 1024
"""The largest log record, resource or scope. Only one is decoded at a time, so that what is small
as it is sent and large when it is decoded takes no more memory than a hundred times this."""

_MAX_JSON_NODES: Final = 500_000
"""The most braces, brackets and commas in a body of JSON: each costs up to 100 bytes of memory."""

_PART_BYTES: Final = 4
"""A body has a part for so many bytes: a log record in Protocol Buffers may have 2, and in JSON a
resource, which each log record has in its value, may have most of the body."""

_RESOURCE_LOGS, _RESOURCE, _SCOPE_LOGS = 1, 1, 2
_SCOPE, _LOG_RECORDS, _SCHEMA_URL = 1, 2, 3


class OtlpFormat:
    """The body of one ``POST /v1/logs``, and how it is answered, as OTLP 1.x has it.

    Args:
        request: The request; its body has not been read.
        settings: How many records a request may have, and the most bytes that they may come to
            once they are JSON, ``max_decompressed_bytes``.

    Raises:
        HttpRejection: Its content type is neither (415), or its message id is empty or too long, or
            it has more than one (400).
    """

    def __init__(self, request: HttpRequest, settings: HttpSettings) -> None:
        self._max_bytes = settings.max_decompressed_bytes
        self._max_records = settings.max_records
        self._size_bytes = self._nodes = 0
        self.message_id = message_id_of(request)
        self._is_json = request.media_type == JSON
        if request.media_type not in (JSON, PROTOBUF):
            raise HttpRejection(415, f"Content-Type must be {PROTOBUF} or {JSON}.")

    @property
    def parts(self) -> int:
        """At least as many as it has log records, resources and scopes, by its size."""
        return self._size_bytes // _PART_BYTES

    def count(self, piece: bytes) -> None:
        """Count bytes, and what makes objects of JSON, so that no more is read than is allowed.

        Raises:
            HttpRejection: There are too many (413).
        """
        self._size_bytes += len(piece)
        if self._is_json:
            self._nodes += piece.count(b"{") + piece.count(b"[") + piece.count(b",")
            if self._nodes > _MAX_JSON_NODES:
                raise HttpRejection(
                    413,
                    f"The body has more than {_MAX_JSON_NODES} braces, brackets and commas; send"
                    " fewer log records at a time, or send Protocol Buffers.",
                )

    def records(self, body: bytes, timestamp_ms: int) -> Records | None:
        """A record for each log record; None where there are none, which OTLP allows.

        Raises:
            HttpRejection: The body is malformed or cut short (400), or has too much in it (413).
        """
        values: list[bytes] = []
        size_bytes = 0
        for value in self._values(body):
            size_bytes += len(value)
            if size_bytes > self._max_bytes:
                raise HttpRejection(
                    413,
                    f"The log records come to more than {self._max_bytes} bytes with their"
                    " resources; send fewer at a time.",
                )
            if len(values) == self._max_records:
                raise HttpRejection(
                    413,
                    f"The body has more than the {self._max_records} log records that a request may"
                    " have; send fewer at a time.",
                )
            values.append(value)
        return Records.of(values, timestamp_ms=timestamp_ms) if values else None

    def _values(self, body: bytes) -> Iterator[bytes]:
        if self._is_json:
            return _of_json(body)
        return _of_protobuf(body)


def success(request: HttpRequest) -> tuple[bytes, str]:
    """The body of an answer that takes everything, and its content type."""
    return (b"{}", JSON) if request.media_type == JSON else (b"", PROTOBUF)


def failure(request: HttpRequest, sentence: str) -> tuple[bytes, str]:
    """The body of any other answer, a ``google.rpc.Status``, and its content type."""
    if request.media_type != PROTOBUF:
        return json.dumps({"message": sentence}).encode(), JSON
    text = sentence.encode()
    return b"\x12" + _varint(len(text)) + text, PROTOBUF


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Protocol Buffers: the three outer messages are walked, and what they hold is decoded one by one.


def _of_protobuf(body: bytes) -> Iterator[bytes]:
    try:
        for number, resource_logs in _fields(body):
            if number == _RESOURCE_LOGS:
                yield from _of_resource(resource_logs)
    except (DecodeError, UnicodeDecodeError, _CutShortError) as error:
        raise HttpRejection(
            400, "The body is not an ExportLogsServiceRequest of OTLP, or is cut short."
        ) from error


def _of_resource(resource_logs: memoryview) -> Iterator[bytes]:
    resource: dict[str, Any] = {}
    schema_url = ""
    for number, part in _fields(resource_logs):
        if number == _RESOURCE:
            resource = _resource(Resource.FromString(_small(part)))
        elif number == _SCHEMA_URL:
            schema_url = str(_small(part), "utf-8")
    for number, part in _fields(resource_logs):
        if number == _SCOPE_LOGS:
            yield from _of_scope(part, resource, schema_url)


def _of_scope(
    scope_logs: memoryview, resource: dict[str, Any], resource_schema_url: str
) -> Iterator[bytes]:
    scope: dict[str, Any] = {}
    schema_url = ""
    for number, part in _fields(scope_logs):
        if number == _SCOPE:
            scope = _scope(InstrumentationScope.FromString(_small(part)))
        elif number == _SCHEMA_URL:
            schema_url = str(_small(part), "utf-8")
    form = _Envelope(resource, resource_schema_url, scope, schema_url)
    for number, part in _fields(scope_logs):
        if number == _LOG_RECORDS:
            yield form.around(_log_record(LogRecord.FromString(_small(part))))


def _small(part: memoryview) -> bytes:
    if len(part) > _MAX_PART_BYTES:
        raise HttpRejection(
            413,
            f"A log record, a resource or a scope has more than {_MAX_PART_BYTES} bytes; make it"
            " smaller.",
        )
    return bytes(part)


class _CutShortError(ValueError):
    """The bytes end within a field, or are no fields."""


def _fields(message: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    data, at = memoryview(message), 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 2:
            length, at = _read_varint(data, at)
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind == 0:
            _, at = _read_varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _CutShortError
    if at > len(data):
        raise _CutShortError


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise _CutShortError


class _Envelope:
    def __init__(
        self,
        resource: dict[str, Any],
        resource_schema_url: str,
        scope: dict[str, Any],
        schema_url: str,
    ) -> None:
        outer: dict[str, Any] = {"resource": resource}
        inner: dict[str, Any] = {"scope": scope}
        if resource_schema_url:
            outer["schemaUrl"] = resource_schema_url
        if schema_url:
            inner["schemaUrl"] = schema_url
        before = _dumped(outer)[:-1] + ',"scopeLogs":[' + _dumped(inner)[:-1] + ',"logRecords":['
        self._before = b'{"resourceLogs":[' + _encoded(before)

    def around(self, log_record: dict[str, Any]) -> bytes:
        return self._before + _encoded(_dumped(log_record)) + b"]}]}]}"


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise HttpRejection(
            400,
            "The body has half a surrogate pair in a string, which is no character; leave it out.",
        ) from error


def _resource(resource: Resource) -> dict[str, Any]:
    return _present(
        attributes=_attributes(resource.attributes),
        droppedAttributesCount=resource.dropped_attributes_count,
    )


def _scope(scope: InstrumentationScope) -> dict[str, Any]:
    return _present(
        name=scope.name,
        version=scope.version,
        attributes=_attributes(scope.attributes),
        droppedAttributesCount=scope.dropped_attributes_count,
    )


def _log_record(record: LogRecord) -> dict[str, Any]:
    """As OTLP has it in JSON: 64 bits as text, identifiers in hexadecimal digits."""
    return _present(
        timeUnixNano=str(record.time_unix_nano or ""),
        observedTimeUnixNano=str(record.observed_time_unix_nano or ""),
        severityNumber=record.severity_number,
        severityText=record.severity_text,
        body=_any_value(record.body) if record.HasField("body") else None,
        attributes=_attributes(record.attributes),
        droppedAttributesCount=record.dropped_attributes_count,
        flags=record.flags,
        traceId=record.trace_id.hex(),
        spanId=record.span_id.hex(),
        eventName=record.event_name,
    )


def _present(**fields: Any) -> dict[str, Any]:
    """Without those that have their default, as JSON for Protocol Buffers leaves them out."""
    return {name: value for name, value in fields.items() if value or isinstance(value, dict)}


def _attributes(pairs: "Any") -> list[dict[str, Any]]:
    return [_key_value(pair) for pair in pairs]


def _key_value(pair: KeyValue) -> dict[str, Any]:
    return {"key": pair.key, "value": _any_value(pair.value)}


def _any_value(value: AnyValue) -> dict[str, Any]:
    kind = value.WhichOneof("value")
    if kind is None or kind not in _VALUES:
        return {}  # it has no value, or one that logs cannot have
    name, convert = _VALUES[kind]
    return {name: convert(getattr(value, kind))}


def _double(value: float) -> float | str:
    """JSON for Protocol Buffers has these three as text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_VALUES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "string_value": ("stringValue", str),
    "bool_value": ("boolValue", bool),
    "int_value": ("intValue", str),
    "double_value": ("doubleValue", _double),
    "bytes_value": ("bytesValue", lambda value: b64encode(value).decode("ascii")),
    "array_value": (
        "arrayValue",
        lambda array: _present(values=[_any_value(each) for each in array.values]),
    ),
    "kvlist_value": ("kvlistValue", lambda pairs: _present(values=_attributes(pairs.values))),
}


# JSON: what it says is checked as the Collector does, and passed on as it is.


def _whole(lowest: int, highest: int) -> Callable[[Any], bool]:
    def is_right(value: Any) -> bool:
        if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,20}", value, re.ASCII):
            value = int(value)
        return type(value) is int and lowest <= value <= highest

    return is_right


def _is_double(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity") or bool(_NUMBER.fullmatch(value))
    return type(value) in (int, float)


def _matches(form: str) -> Callable[[Any], bool]:
    pattern = re.compile(form)
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_TEXT: Final = ("a string", lambda value: isinstance(value, str))
_UINT32: Final = ("a whole number, 0 to 4294967295", _whole(0, 2**32 - 1))
_TIME: Final = ("a whole number of nanoseconds, as a string", _whole(0, 2**64 - 1))

_Fields = dict[str, tuple[str, Callable[[Any], bool]]]
"""By name, what a value must be, and whether it is."""

_OF_VALUE: Final[_Fields] = {
    "stringValue": _TEXT,
    "boolValue": ("true or false", lambda value: isinstance(value, bool)),
    "intValue": ("a whole number of 64 bits, as a string", _whole(-(2**63), 2**63 - 1)),
    "doubleValue": ("a number", _is_double),
    "bytesValue": ("base64", _matches("([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}([A-Za-z0-9+/]=|==))?")),
}
_OF_PAIR: Final[_Fields] = {"key": _TEXT}
_OF_RESOURCE: Final[_Fields] = {"droppedAttributesCount": _UINT32}
_OF_SCOPE: Final[_Fields] = _OF_RESOURCE | {"name": _TEXT, "version": _TEXT}
_OF_LOG_RECORD: Final[_Fields] = _OF_RESOURCE | {
    "timeUnixNano": _TIME,
    "observedTimeUnixNano": _TIME,
    "severityNumber": (
        "a whole number, or a name of OTLP such as SEVERITY_NUMBER_INFO",
        lambda value: type(value) is int and -(2**31) <= value < 2**31,
    ),
    "severityText": _TEXT,
    "flags": _UINT32,
    "traceId": ("32 hexadecimal digits", _matches("([0-9a-fA-F]{32})?")),
    "spanId": ("16 hexadecimal digits", _matches("([0-9a-fA-F]{16})?")),
    "eventName": _TEXT,
}


def _check_fields(holder: dict[str, Any], fields: _Fields) -> None:
    for name, value in holder.items():
        if name in fields and value is not None and not fields[name][1](value):
            raise HttpRejection(400, f"{name} must be {fields[name][0]}; send it so.")


def _check_value(value: Any, where: str) -> None:
    if value is None:
        return
    _check_fields(_checked(value, where), _OF_VALUE)
    for name, check in (("arrayValue", _check_value), ("kvlistValue", _check_pair)):
        if (values := value.get(name)) is not None:
            _check_all(_checked(values, name).get("values"), name, check)


def _check_pair(pair: Any, where: str) -> None:
    _check_fields(_checked(pair, where), _OF_PAIR)
    _check_value(pair.get("value"), where)


def _check_all(values: Any, name: str, check: Callable[[Any, str], None]) -> None:
    if values is None:
        return
    if not isinstance(values, list):
        raise HttpRejection(400, f"{name} has no list in it; send OTLP.")
    for value in values:
        check(value, name)


def _holder(value: Any, where: str, fields: _Fields) -> dict[str, Any]:
    """Return what has attributes, checked."""
    holder = _checked(value, where)
    _check_fields(holder, fields)
    _check_all(holder.get("attributes"), "attributes", _check_pair)
    return holder


def _log_record_in(value: Any) -> dict[str, Any]:
    """Return a log record of a body, checked, with its severity as a number."""
    record = _checked(value, "logRecords")
    severity = record.get("severityNumber")
    if isinstance(severity, str) and severity in SeverityNumber.keys():  # noqa: SIM118
        record["severityNumber"] = SeverityNumber.Value(severity)
    _check_value(record.get("body"), "body")
    return _holder(record, "logRecords", _OF_LOG_RECORD)


def _of_json(body: bytes) -> Iterator[bytes]:
    try:
        sent = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except _TooLargeError as error:
        raise HttpRejection(400, f"The body has the number {error}, beyond a double.") from error
    except (ValueError, RecursionError) as error:
        raise HttpRejection(400, "The body is not JSON, or is cut short.") from error
    try:
        for resource_logs in _inside(sent, "resourceLogs", ()):
            yield from _of_resource_in(resource_logs)
    except RecursionError as error:
        raise HttpRejection(400, "A value in the body is nested too deeply; flatten it.") from error


def _of_resource_in(resource_logs: Any) -> Iterator[bytes]:
    all_scope_logs = _inside(resource_logs, "scopeLogs", ("resource", "schemaUrl"))
    resource = _holder(resource_logs.get("resource") or {}, "resource", _OF_RESOURCE)
    for scope_logs in all_scope_logs:
        log_records = _inside(scope_logs, "logRecords", ("scope", "schemaUrl"))
        form = _Envelope(
            resource,
            _text(resource_logs.get("schemaUrl") or ""),
            _holder(scope_logs.get("scope") or {}, "scope", _OF_SCOPE),
            _text(scope_logs.get("schemaUrl") or ""),
        )
        for log_record in log_records:
            yield form.around(_log_record_in(log_record))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class _TooLargeError(ValueError):
    """A number that becomes infinity, which JSON cannot say."""


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise _TooLargeError(text[:40])
    return number


def _inside(holder: Any, name: str, others: tuple[str, ...]) -> list[Any]:
    found = _checked(holder, "The body" if name == "resourceLogs" else name).get(name)
    if found is None and set(holder) <= {name, *others}:
        return []
    if not isinstance(found, list):
        raise HttpRejection(
            400, f"{name} is missing or no list in the body; send OTLP, in its JSON with camelCase."
        )
    return found


def _checked(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HttpRejection(400, f"{where} has something in it that is no object; send OTLP.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise HttpRejection(400, "schemaUrl is no string; send OTLP.")
    return value
