"""Settings file of ``headrace receive``: a TOML file that all receivers can share.

Each key is a field of a settings class that is not a command-line option. The class defines
everything about the key: the field has the type and the default, the field's first sentence in the
docstring has the unit and the range, and ``__post_init__`` checks the value. Keys for all receivers
come first. Keys for one kind of receiver are in its section, such as ``[http]``. Every receiver
checks the whole file.
"""

import difflib
import inspect
import json
import re
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from headrace.errors import OptionError
from headrace.journal.receivers.hosting import Hosting
from headrace.journal.receivers.journal_cap import CapSettings
from headrace.journal.receivers.option import option_of
from headrace.journal.receivers.registry import RECEIVERS
from headrace.journal.receivers.settings import IntakeSettings
from headrace.journal.receivers.shared_rate import ReceiverLimits

SHARED: Final = ""
"""Section name in `KEYS` for the keys before all sections, which apply to all receivers."""

_PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    SHARED: (IntakeSettings, ReceiverLimits, CapSettings, Hosting),
    **{name: (settings,) for name, (_, settings) in RECEIVERS.items()},
}
_UNITS: Final = ("s", "ms", "bytes")
_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
}
_HEAD: Final = """\
# Settings of `headrace receive`, with their defaults; pass this file with --settings.
# A receiver uses the keys above the sections, and the keys in its own section."""


def described_fields(kind: Any) -> Iterator[tuple[Field[Any], Any, type | None]]:
    """Yield each field of a settings class, its type, and its nested settings class or None."""
    hints = get_type_hints(kind)
    for setting in fields(kind):
        hint = hints[setting.name]
        yield setting, hint, hint if is_dataclass(hint) and isinstance(hint, type) else None


def sentences(kind: type) -> dict[str, str]:
    """Return the first sentence of each attribute in a class's docstring, by attribute name."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    plain = {name: " ".join(text.replace("``", "'").split()) for name, text in described}
    return {name: re.split(r"(?<=\.) ", text)[0] for name, text in plain.items()}


@dataclass(frozen=True, slots=True)
class Key:
    """Key of the settings file.

    Attributes:
        name: Name of the key, and of the field of the settings class.
        kind: Type of the value.
        default: Value if the file lacks the key; None for no value.
        sentence: Description of the key, with unit and range.
    """

    name: str
    kind: type
    default: Any
    sentence: str


def _keys(part: str) -> dict[str, Key]:
    keys = {}
    for kind in _PARTS[part]:
        meanings = sentences(kind)
        for setting, hint, nested in described_fields(kind):
            if nested is None and option_of(setting).name is None:
                default = None if setting.default is MISSING else setting.default
                keys[setting.name] = Key(
                    setting.name, _plain(hint), default, meanings[setting.name]
                )
    return keys


def _plain(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        hint = next(
            alternative
            for alternative in typing.get_args(hint)
            if alternative is not types.NoneType
        )
    assert isinstance(hint, type)  # noqa: S101
    return hint


def _options(kind: type) -> Iterator[tuple[str, str]]:
    for setting, _, nested in described_fields(kind):
        if nested is not None:
            yield from _options(nested)
        if (name := option_of(setting).name) is not None:
            yield setting.name, name


_OPTIONS: Final = dict(
    pair for kinds in _PARTS.values() for kind in kinds for pair in _options(kind)
)
"""Names of the command-line options, by the name of the settings field."""

KEYS: Final[Mapping[str, Mapping[str, Key]]] = {part: _keys(part) for part in _PARTS}
"""Keys of the settings file, by section and name. Keys of ``SHARED`` precede all sections."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Settings of one kind of receiver, read from a settings file.

    Attributes:
        values: Values by field name, only for the keys that the file contains.
        section: Kind of receiver, such as ``http``.
    """

    values: Mapping[str, Any]
    section: str

    @classmethod
    def read(cls, path: Path | None, section: str) -> "SettingsFile":
        """Read and check a settings file, and return the settings for ``section``.

        Without a ``path``, return no values.

        Raises:
            OptionError: The file cannot be read, is not TOML, or has a wrong key or value.
        """
        if path is None:
            return cls({}, section)
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise OptionError(
                f"The settings file {path} cannot be read: {error.strerror}."
            ) from error
        except ValueError as error:  # invalid TOML or UTF-8
            raise OptionError(f"The settings file {path} is not TOML: {error}.") from error
        try:
            parts = _checked(document)
        except OptionError as error:
            raise OptionError(f"In the settings file {path}: {error}") from error
        return cls(parts[SHARED] | parts[section], section)


def _checked(told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {SHARED: {}}
    for name in _PARTS:
        section = told.get(name, {}) if name else {}
        if not isinstance(section, dict):
            raise OptionError(f"{name} is a key; it must be the section [{name}].")
        parts[name] = {key: _value(name, key, value) for key, value in section.items()}
    for name, value in told.items():
        if name in _PARTS:
            continue
        if isinstance(value, dict):
            *sections, last = (f"[{entry}]" for entry in RECEIVERS)
            raise OptionError(
                f"the section [{name}] is not known; the sections are {', '.join(sections)}"
                f" and {last}."
            )
        parts[SHARED][name] = _value(SHARED, name, value)
    for name, kinds in _PARTS.items():
        for kind in kinds:
            samples = {entry.name: option_of(entry).sample for entry in fields(kind)}
            needed = {key: value for key, value in samples.items() if value is not None}
            values = {key: value for key, value in parts[name].items() if key in samples}
            kind(**{**needed, **values})
    return parts


def _value(part: str, name: str, value: object) -> Any:
    key = KEYS[part].get(name)
    if key is None:
        raise OptionError(_unknown(part, name))
    allowed = (int, float) if key.kind is float else key.kind
    if not isinstance(value, allowed) or isinstance(value, bool) is not (key.kind is bool):
        raise OptionError(
            f"{_shown(part, name)} is {value!r}; it must be {_WORDS[key.kind]}: {key.sentence}"
        )
    return value


def _unknown(part: str, name: str) -> str:
    key_name = _shown(part, name)
    if (flag := _OPTIONS.get(name)) is not None:
        return f"{key_name} cannot be set in the file; use the option {flag}."
    elsewhere = [section for section in KEYS if section != part and name in KEYS[section]]
    if elsewhere:
        places = " or ".join(
            f"[{place}]" if place else "before the sections" for place in elsewhere
        )
        return (
            f"{key_name} is in the wrong place; put it {'into ' if elsewhere[0] else ''}{places}."
        )
    for unit in _UNITS:
        if f"{name}_{unit}" in KEYS[part]:
            return f"{key_name} lacks its unit; it is {name}_{unit}."
    near = difflib.get_close_matches(name, KEYS[part], 1)
    if near:
        return f"{key_name} is not known; did you mean {near[0]}?"
    return f"{key_name} is not known; the keys there are {', '.join(sorted(KEYS[part]))}."


def _shown(part: str, name: str) -> str:
    return f"{name} in [{part}]" if part else name


def default_file() -> str:
    """Return the text of a settings file that has every key with its description and default.

    Keys without a default are commented out.
    """
    parts = [_HEAD]
    for part, keys in KEYS.items():
        lines = [f"[{part}]"] if part else []
        for key in keys.values():
            lines += textwrap.wrap(key.sentence, 98, initial_indent="# ", subsequent_indent="# ")
            lines.append(
                f"# {key.name} ="
                if key.default is None
                else f"{key.name} = {json.dumps(key.default)}"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
