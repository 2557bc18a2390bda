"""Protocol Buffers format: one message per value, with or without a wire format header."""

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
    """A file or a message in a schema's text, with the messages that are directly in it.

    Only the braces of a message open a scope; those of an enum, for example, do not.
    """

    name: str
    messages: list["_Scope"] = field(default_factory=list)


def message_at(text: str, path: Sequence[int]) -> str | None:
    """Return the full name of a message in the text of a Protocol Buffers schema.

    ``path`` is the index of the outermost message in the file, then the index of each nested
    message in the message around it.

    >>> message_at('package shop; message Order { message Item {} } message Other {}', [0, 0])
    'shop.Order.Item'

    Returns:
        The name; None if there is no such message, or the text is not Protocol Buffers.
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
    """Return a format for `headrace.decode`: one Protocol Buffers message in each value.

    With a registry, values must be in Confluent's wire format: a byte 0, the id of the writer's
    schema, and the index of the message in that schema. A value is rejected if the registry does
    not know the id, or if the name of the message in the registry is not ``message``. All other
    values are decoded with ``descriptors``; fields that the descriptors lack are dropped.

    Args:
        descriptors: the output of ``protoc --include_imports --descriptor_set_out=FILE``: the path
            of the file, or its content as bytes.
        message: the full name of the message, such as ``shop.Order``.
        registry: the registry with the schemas of the writers. Default: None; values are messages
            without a wire format header.

    Raises:
        OptionError: the descriptors cannot be read, do not parse or lack the message; or the
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
                f"The descriptors' file {descriptors} cannot be read ({error}); name a file that"
                " protoc --include_imports --descriptor_set_out has written."
            ) from error
    form = ProtobufFormat(content, message, registry)
    form.columns()
    return form


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Format of Protocol Buffers messages, with their descriptors; created by `protobuf`."""

    descriptors: bytes
    message: str
    registry: SchemaRegistry | None = None

    def __str__(self) -> str:
        return option_text(self)

    def option(self, _spark: SparkSession | None = None) -> dict[str, Any]:
        """Return the base64 descriptors, the message's name and the registry.

        The three values are under the key ``protobuf``.
        """
        return {
            "protobuf": {
                "descriptors": b64encode(self.descriptors).decode(),
                "message": self.message,
                "registry": None if self.registry is None else asdict(self.registry),
            }
        }

    def columns(self, _spark: SparkSession | None = None) -> t.StructType:
        """Return the fields of the message as Spark types."""
        kind, _ = _struct(_descriptor(self), ())
        return kind

    def decoder(
        self, columns: t.StructType, asked: Collection[str] | None = None
    ) -> "ProtobufDecoder":
        """Create a decoder of the message for the columns in ``asked``."""
        return ProtobufDecoder(self, columns, asked)


class ProtobufDecoder:
    """Decodes Protocol Buffers messages into structs."""

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
        """Reason for a rejection, or None, by schema id and by the message's path in the schema."""
        self._columns = Columns(columns, takes, asked)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values, as `Decoder.decode` describes."""
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
            return None, "it is not a message of the Protocol Buffers schema"
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
            return b"", f"the registry's schema {number} is {registered.kind}, not PROTOBUF"
        path, data = _path_and_message(payload(value))
        if path is None:
            return b"", "it has no valid message index after its schema id"
        if (number, path) not in self._is_wanted:
            self._is_wanted[number, path] = self._why_unwanted(number, path, registered.text)
        return data, self._is_wanted[number, path]

    def _why_unwanted(self, number: int | UUID, path: tuple[int, ...], text: str) -> str | None:
        name = message_at(text, path)
        if name is None:
            place = ".".join(map(str, path))
            return f"the registry's schema {number} has no message with the index {place}"
        if name != self._message:
            return f"it is a {name} in the registry's schema {number}, not a {self._message}"
        return None


_MOST_NESTED: Final = 100


def _path_and_message(data: bytes) -> tuple[tuple[int, ...] | None, bytes]:
    """Split the bytes after a value's schema id into the message's path and the message.

    The path is None if it is invalid. A single byte 0 stands for the path (0,).
    """
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
    """Read a zigzag varint of at most 32 bits.

    Return its value and the offset of its end. The value is None if the varint is invalid.
    """
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
    """Return the Spark type of a message, and for each field a function that gets its value.

    Raises:
        OptionError: the message contains itself, or has no fields.
    """
    if descriptor.full_name in within or not descriptor.fields:
        fault = "contains itself" if descriptor.fields else "has no fields"
        raise OptionError(
            f"The message {descriptor.full_name} {fault}, which Spark's types cannot represent;"
            " remove the field with this message from the descriptors."
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
            f"The field {field.full_name} is a group, which Headrace does not decode; remove the"
            " field from the descriptors."
        )
    kind, takes = _struct(field.message_type, within)
    named = list(zip(kind.names, takes, strict=True))
    return kind, lambda message: {name: take(message) for name, take in named}


def _microseconds(timestamp: Any) -> int:
    if not 0 <= timestamp.nanos < 1_000_000_000:
        raise ValueError("its nanoseconds are below 0 or above 999,999,999")
    return int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1_000


def _descriptor(of: ProtobufFormat) -> Any:
    """Return the descriptor of the format's message, from a descriptor pool of its own."""
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
            f"The descriptors have no message {of.message!r}; give the message's full name, such as"
            f" {_a_name(files)}."
        ) from None
    except (package.message.DecodeError, TypeError) as error:
        raise OptionError(
            f"The descriptors do not parse ({str(error).partition(chr(10))[0]}); give the output of"
            " protoc --include_imports --descriptor_set_out."
        ) from None
    raise OptionError(
        "The descriptors are empty; give the output of protoc --include_imports"
        " --descriptor_set_out."
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
