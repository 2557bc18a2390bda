"""Protocol Buffers format: one message per value, alone or in a registry's wire format."""

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import SparkSession, types as t

from headrace.core.system import needs_extra
from headrace.decoding.formats import Columns, Decoded, option_text
from headrace.decoding.registry import (
    NO_ID,
    SchemaRegistry,
    client_package,
    payload,
    schema_id,
    unknown_id,
)
from headrace.errors import OptionError

_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_][\w.]*|[{};]|[^\s\w]|\d\S*""",
    re.DOTALL,
)


@dataclass(slots=True)
class _Scope:
    """The file or a message; other braces push the enclosing scope once more."""

    name: str
    messages: list["_Scope"] = field(default_factory=list)


def message_at(text: str, path: Sequence[int]) -> str | None:
    """Return the full name of the message at a path: its index in the file, then in each message.

    >>> message_at('package shop; message Order { message Item {} } message Other {}', [0, 0])
    'shop.Order.Item'

    Returns:
        The name, or None without such a message or for a text that is not Protocol Buffers.
    """
    words = [
        token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*", '"', "'"))
    ]
    package = ""
    scopes = [_Scope("")]
    for at, mark in enumerate(words):
        word, name = (words[at - 2], words[at - 1]) if at > 1 else ("", "")
        if mark == "{":
            if word in {"message", "group"}:
                scopes[-1].messages.append(_Scope(name))
                scopes.append(scopes[-1].messages[-1])
            else:
                scopes.append(scopes[-1])
        elif mark == "}":
            if len(scopes) == 1:
                return None
            scopes.pop()
        elif mark == ";" and word == "package" and len(scopes) == 1:
            package = name
    scope, names = scopes[0], [package] if package else []
    for place in path:
        if not 0 <= place < len(scope.messages):
            return None
        scope = scope.messages[place]
        names.append(scope.name)
    return ".".join(names) if path else None


_TIMESTAMP: Final = "google.protobuf.Timestamp"

# Spark types by the numbers of FieldDescriptorProto.Type.
_PLAIN: Final[dict[int, t.DataType]] = {
    1: t.DoubleType(),
    2: t.FloatType(),
    3: t.LongType(),
    4: t.DecimalType(20, 0),
    5: t.IntegerType(),
    6: t.DecimalType(20, 0),
    7: t.LongType(),
    8: t.BooleanType(),
    9: t.StringType(),
    12: t.BinaryType(),
    13: t.LongType(),
    14: t.StringType(),
    15: t.IntegerType(),
    16: t.LongType(),
    17: t.IntegerType(),
    18: t.LongType(),
}
_UNSIGNED_64: Final = frozenset({4, 6})
_ENUM: Final = 14
_MESSAGE: Final = 11


def protobuf(
    descriptors: str | Path | bytes, message: str, *, registry: SchemaRegistry | None = None
) -> "ProtobufFormat":
    """Return the format of Protocol Buffers messages, one in each value.

    With a registry values have Confluent's wire format: a byte 0, the id of the writer's schema,
    and the message's index in the schema. A message is rejected if the registry does not know its
    schema id, or if the registry's message name differs from ``message``. All others are read with
    the descriptors given here: fields that these descriptors lack are dropped.

    Args:
        descriptors: the output of ``protoc --include_imports --descriptor_set_out=FILE``: the
            file's path, or its content.
        message: the message's full name, such as ``shop.Order``.
        registry: the registry of writers' schemas. Default: none; values are messages alone.

    Raises:
        OptionError: the descriptors cannot be read or do not parse, they lack the message, or the
            message contains itself, which Spark's types cannot represent.
        SetupError: protobuf or the registry's client is not installed
            (``pip install 'headrace[protobuf]'``).
    """
    if registry is not None:
        client_package("protobuf")
    if isinstance(descriptors, bytes):
        content = descriptors
    else:
        try:
            content = Path(descriptors).read_bytes()
        except OSError as error:
            raise OptionError(
                f"The descriptors' file {descriptors} cannot be read ({error}); name one that"
                " protoc --include_imports --descriptor_set_out has written."
            ) from error
    form = ProtobufFormat(content, message, registry)
    form.columns()
    return form


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Protocol Buffers with a message's descriptors, created by `protobuf`."""

    descriptors: bytes
    message: str
    registry: SchemaRegistry | None = None

    def __str__(self) -> str:
        return option_text(self)

    def option(self, _spark: SparkSession | None = None) -> dict[str, Any]:
        """Return the descriptors in base 64, the message's name, and the registry."""
        return {
            "protobuf": {
                "descriptors": b64encode(self.descriptors).decode(),
                "message": self.message,
                "registry": None if self.registry is None else asdict(self.registry),
            }
        }

    def columns(self, _spark: SparkSession | None = None) -> t.StructType:
        """Return the message's fields."""
        kind, _ = _struct(_descriptor(self), ())
        return kind

    def decoder(
        self, columns: t.StructType, asked: Collection[str] | None = None
    ) -> "ProtobufDecoder":
        """Return a decoder of this message, which builds the requested columns."""
        return ProtobufDecoder(self, columns, asked)


class ProtobufDecoder:
    """Decodes Protocol Buffers messages."""

    def __init__(
        self, of: ProtobufFormat, columns: t.StructType, asked: Collection[str] | None = None
    ) -> None:
        package = _protobuf()
        descriptor = _descriptor(of)
        _, takes = _struct(descriptor, ())
        self._parse = package.message_factory.GetMessageClass(descriptor).FromString
        self._malformed = package.message.DecodeError
        self._registry = of.registry
        self._message = of.message
        self._is_wanted: dict[tuple[int | UUID, tuple[int, ...]], str | None] = {}
        """Reason of rejection, or None, by a schema's id and a message's path in the schema."""
        self._columns = Columns(columns, takes, asked)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values; see `Decoder.decode`."""
        records: list[Any] = []
        reasons: dict[int, str] = {}
        for number, value in enumerate(values.to_pylist()):
            reason = None
            record = None
            if value is not None:
                data, reason = self._data(value)
                if reason is None:
                    record, reason = self._record(data)
            records.append(record)
            if reason is not None:
                reasons[number] = reason
        return self._columns.structs(records, reasons)

    def _record(self, data: bytes) -> tuple[Any, str | None]:
        try:
            record = self._parse(data)
        except self._malformed:
            return None, "it is no message of the Protocol Buffers schema"
        if not record.IsInitialized():
            return None, "it lacks a field that the Protocol Buffers schema requires"
        return record, None

    def _data(self, value: bytes) -> tuple[bytes, str | None]:
        if self._registry is None:
            return value, None
        number = schema_id(value)
        if number is None:
            return b"", NO_ID
        registered = self._registry.schema(number)
        if registered is None:
            return b"", unknown_id(number)
        if registered.kind != "PROTOBUF":
            return b"", f"the registry's schema {number} is of {registered.kind}, not of PROTOBUF"
        path, data = _path_and_message(payload(value))
        if path is None:
            return b"", "it does not say which message of its schema it is"
        if (number, path) not in self._is_wanted:
            self._is_wanted[number, path] = self._why_unwanted(number, path, registered.text)
        return data, self._is_wanted[number, path]

    def _why_unwanted(self, number: int | UUID, path: tuple[int, ...], text: str) -> str | None:
        name = message_at(text, path)
        if name is None:
            place = ".".join(map(str, path))
            return f"the registry's schema {number} has no message at {place}"
        if name != self._message:
            return f"it is a {name} by the registry's schema {number}, not a {self._message}"
        return None


_MOST_NESTED: Final = 100


def _path_and_message(data: bytes) -> tuple[tuple[int, ...] | None, bytes]:
    """Return the message's path in its schema's file, and the message; a byte 0 is the path 0."""
    count, at = _varint(data, 0)
    if count is None or not 0 <= count <= _MOST_NESTED:
        return None, b""
    path: list[int] = []
    for _ in range(count):
        index, at = _varint(data, at)
        if index is None:
            return None, b""
        path.append(index)
    return tuple(path) or (0,), data[at:]


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """Return a zigzag number of at most 32 bits and its end; None without a number."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return None, at


_Take = Callable[[Any], Any]


def _struct(descriptor: Any, within: tuple[str, ...]) -> tuple[t.StructType, list[_Take]]:
    """Return the Spark type of a message, and a getter for each of its fields.

    Raises:
        OptionError: the message contains itself, or has no fields.
    """
    if descriptor.full_name in within or not descriptor.fields:
        fault = "holds itself" if descriptor.fields else "has no fields"
        raise OptionError(
            f"The message {descriptor.full_name} {fault}, which Spark's types cannot hold; leave"
            " that field out of the descriptors."
        )
    inner = (*within, descriptor.full_name)
    fields: list[t.StructField] = []
    takes: list[_Take] = []
    for member in descriptor.fields:
        kind, take = _field(member, inner)
        fields.append(t.StructField(member.name, kind))
        takes.append(take)
    return t.StructType(fields), takes


def _field(field: Any, within: tuple[str, ...]) -> tuple[t.DataType, _Take]:
    name = field.name
    if field.type == _MESSAGE and field.message_type.GetOptions().map_entry:
        key, _ = _single(field.message_type.fields_by_name["key"], within)
        value, convert = _single(field.message_type.fields_by_name["value"], within)
        return t.MapType(key, value), lambda message: [
            (entry, convert(item)) for entry, item in getattr(message, name).items()
        ]
    kind, convert = _single(field, within)
    if field.is_repeated:
        return t.ArrayType(kind), lambda message: [
            convert(entry) for entry in getattr(message, name)
        ]
    if field.has_presence:
        return (
            kind,
            lambda message: convert(getattr(message, name)) if message.HasField(name) else None,
        )
    return kind, lambda message: convert(getattr(message, name))


def _single(field: Any, within: tuple[str, ...]) -> tuple[t.DataType, _Take]:
    if field.type == _ENUM:
        names = {symbol.number: symbol.name for symbol in field.enum_type.values}
        return t.StringType(), lambda value: names.get(value, str(value))
    if field.type in _UNSIGNED_64:
        return _PLAIN[field.type], Decimal
    if field.type in _PLAIN:
        return _PLAIN[field.type], lambda value: value
    if field.type == _MESSAGE and field.message_type.full_name == _TIMESTAMP:
        return t.TimestampType(), _microseconds
    if field.type != _MESSAGE:
        raise OptionError(
            f"The field {field.full_name} is a group, which Spark's types cannot hold; leave it out"
            " of the descriptors."
        )
    kind, takes = _struct(field.message_type, within)
    named = list(zip(kind.names, takes, strict=True))
    return kind, lambda message: {name: take(message) for name, take in named}


def _microseconds(timestamp: Any) -> int:
    if not 0 <= timestamp.nanos < 1_000_000_000:
        raise ValueError("its nanoseconds are those of another second")
    return int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1_000


def _descriptor(of: ProtobufFormat) -> Any:
    """Return the message's descriptor, from a pool of its own."""
    package = _protobuf()
    files = package.descriptor_pb2.FileDescriptorSet()
    pool = package.descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(of.descriptors)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        if files.file:
            return pool.FindMessageTypeByName(of.message)
    except KeyError:
        raise OptionError(
            f"The descriptors have no message {of.message!r}; give its full name, such as"
            f" {_a_name(files)}."
        ) from None
    except (package.message.DecodeError, TypeError) as error:
        raise OptionError(
            f"The descriptors do not parse ({str(error).partition(chr(10))[0]}); give what protoc"
            " --include_imports --descriptor_set_out has written."
        ) from None
    raise OptionError(
        "The descriptors are empty; give what protoc --include_imports --descriptor_set_out has"
        " written."
    )


def _a_name(files: Any) -> str:
    names = [
        f"{file.package}.{message.name}".lstrip(".")
        for file in files.file
        for message in file.message_type
    ]
    return names[-1] if names else "shop.Order"


def _protobuf() -> Any:
    with needs_extra(
        "protobuf", "Decoding Protocol Buffers", where="on every machine of the cluster"
    ):
        import google.protobuf  # noqa: PLC0415  (an extra)
        import google.protobuf.descriptor_pb2  # noqa: PLC0415
        import google.protobuf.descriptor_pool  # noqa: PLC0415
        import google.protobuf.message  # noqa: PLC0415
        import google.protobuf.message_factory  # noqa: PLC0415
    return google.protobuf
