"""The source option ``decode``: the text of a format, which Spark passes to its processes."""

import json
from base64 import b64decode
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from headrace.core.options import word
from headrace.decoding.avro_format import AvroFormat
from headrace.decoding.formats import Format, registry_with_secret
from headrace.decoding.json_format import JsonFormat
from headrace.decoding.protobuf_format import ProtobufFormat
from headrace.decoding.registry import SchemaRegistry
from headrace.errors import OptionError

OPTION: Final = "decode"
MODE: Final = "mode"


class Mode(StrEnum):
    """Treatment of values that do not fit, in a query without a gate. Spark has the same modes."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


def format_of(text: str) -> Format:
    """Parse the text of the option ``decode``; return its format.

    Raises:
        OptionError: the text is not the text of a format.
    """
    try:
        ((kind, settings),) = json.loads(text).items()
        return _KINDS[kind](settings)
    except (ValueError, AttributeError, KeyError, TypeError):
        # The error must not quote the text, which may contain a secret.
        raise OptionError(
            f"The value of the option {OPTION} is not a format; pass headrace.json(...),"
            " headrace.avro(...) or headrace.protobuf(...)."
        ) from None


def has_secret(text: str) -> bool:
    """Return whether the option's text contains a password or token of a schema registry."""
    try:
        return registry_with_secret(json.loads(text)) is not None
    except (ValueError, AttributeError):
        return False


def mode_of(text: str) -> Mode:
    """Return the mode with this name, in upper or lower case.

    Raises:
        OptionError: no mode has this name.
    """
    return word(MODE, text, Mode)


def _json(schema: dict[str, Any]) -> JsonFormat:
    return JsonFormat(json.dumps(schema))


def _avro(settings: dict[str, Any]) -> AvroFormat:
    return AvroFormat(settings["schema"], tuple(settings["references"]), _registry(settings))


def _protobuf(settings: dict[str, Any]) -> ProtobufFormat:
    descriptors = b64decode(settings["descriptors"])
    return ProtobufFormat(descriptors, settings["message"], _registry(settings))


def _registry(settings: dict[str, Any]) -> SchemaRegistry | None:
    registry = settings["registry"]
    return None if registry is None else SchemaRegistry(**registry)


_KINDS: Final[dict[str, Callable[[dict[str, Any]], Format]]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
}
