"""Sources of a setting: an option of ``headrace receive``, or a key of its settings file."""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, Final

_KEY: Final = "headrace"


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line option of a setting; its help is the field's sentence in the docstring.

    Attributes:
        name: The option, such as ``--port``; None for a key of the settings file.
        variable: The environment variable that holds a secret. The option names a file with the
            secret, unless ``instead`` is set.
        instead: The field that this option sets. If this field is set, the variable is ignored.
        sample: A valid value, for classes that cannot be constructed without this field.
        pattern: The command's default for a missing key, with the journal's name and lane.
    """

    name: str | None = None
    variable: str | None = None
    instead: str | None = None
    sample: Any = None
    pattern: str | None = None


def option(name: str | None = None, **others: Any) -> Mapping[str, Any]:
    """Return field metadata with an `Option` of these values."""
    return {_KEY: Option(name, **others)}


def option_of(setting: Field[Any]) -> Option:
    """Return a field's `Option`; without one, the field is a key of the settings file."""
    declared: Option = setting.metadata.get(_KEY, Option())
    return declared
