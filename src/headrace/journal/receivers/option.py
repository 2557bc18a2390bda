"""Metadata of settings fields: whether a field is a command-line option or a settings-file key."""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, Final

_KEY: Final = "headrace"


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line option of a settings field. Its help is the field's first docstring sentence.

    Attributes:
        name: Name of the option, such as ``--port``; None for a key of the settings file.
        variable: Environment variable for a secret; None for other fields. The option of a secret
            takes a file that contains the secret, unless ``instead`` is set.
        instead: Name of another field that the option sets instead of this field. If the other
            field is set, ``variable`` is ignored.
        sample: Valid value, used when a settings file is checked without the command's options.
        pattern: Default that the command uses for a missing key, with ``{journal}`` for the
            journal's name and ``{lane}`` for the lane.
    """

    name: str | None = None
    variable: str | None = None
    instead: str | None = None
    sample: Any = None
    pattern: str | None = None


def option(name: str | None = None, **others: Any) -> Mapping[str, Any]:
    """Return the ``metadata`` argument of a dataclass field, with an `Option` of these values."""
    return {_KEY: Option(name, **others)}


def option_of(setting: Field[Any]) -> Option:
    """Return the `Option` of a settings field; its ``name`` is None for a settings-file key."""
    declared: Option = setting.metadata.get(_KEY, Option())
    return declared
