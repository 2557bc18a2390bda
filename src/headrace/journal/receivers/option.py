"""How a setting is given: by an option of ``headrace receive``, else by a key of its file."""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, Final

_KEY: Final = "headrace"


@dataclass(frozen=True, slots=True)
class Option:
    """The way to a setting from the command line; its help is the sentence of the docstring.

    Attributes:
        name: The option, such as ``--port``; None for a key of the settings file.
        variable: The environment variable that has the value of a secret. The option names a file
            with it, unless ``instead`` is set.
        instead: The field that has this option itself; where it is given, the variable is not read.
        sample: A value that passes checks, where the class cannot be made without one.
        pattern: What the command takes without a key, made of the journal's name and the lane.
    """

    name: str | None = None
    variable: str | None = None
    instead: str | None = None
    sample: Any = None
    pattern: str | None = None


def option(name: str | None = None, **others: Any) -> Mapping[str, Any]:
    """Return the metadata of a field that is given as `Option` says."""
    return {_KEY: Option(name, **others)}


def option_of(setting: Field[Any]) -> Option:
    """Return how a field is given; a field that does not say is a key of the settings file."""
    declared: Option = setting.metadata.get(_KEY, Option())
    return declared
