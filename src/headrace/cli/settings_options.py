"""Command-line options made from settings: a dataclass field becomes an option of its name.

Type and default are the field's; the help is the first sentence that its class's docstring has of
it under ``Attributes:``.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

Settings = TypeVar("Settings")

_NO_NAMES: Final[Mapping[str, str]] = {}


class OptionValues(dict[str, Any]):
    """The values of options, by the names of the fields that they were made from."""

    def make(self, kind: type[Settings], **others: Any) -> Settings:
        """Settings of these values, and of others; fields that are settings are made, too.

        Raises:
            OptionError: A value is out of its range.
        """
        values = dict(others)
        for each, _, nested in _fields(kind):
            if each.name not in values and (nested is not None or each.name in self):
                values[each.name] = self.make(nested) if nested else self[each.name]
        return kind(**values)


def options_from(
    *kinds: type, leave_out: Collection[str] = (), names: Mapping[str, str] = _NO_NAMES
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of settings; it gets their `OptionValues` first.

    Args:
        kinds: The settings' dataclasses; fields that are dataclasses have options for theirs.
        leave_out: Fields without an option.
        names: The names of options that are not their field's, such as ``--tls-ca``.
    """
    made = [each for kind in kinds for each in _parameters(kind, leave_out, names)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**values: Any) -> None:
            command(OptionValues((each.name, values.pop(each.name)) for each in made), **values)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*made, *own]]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameters(
    kind: type, leave_out: Collection[str], names: Mapping[str, str]
) -> Iterator[inspect.Parameter]:
    helps = _helps(kind)
    for each, hint, nested in _fields(kind):
        if each.name in leave_out:
            continue
        if nested is not None:
            yield from _parameters(nested, leave_out, names)
            continue
        name = names.get(each.name, f"--{each.name.replace('_', '-')}")
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        option = typer.Option(
            f"{name}/--no{name[1:]}" if default is True else name,
            metavar="FILE" if each.name.endswith("_file") else None,
            help=helps[each.name],
        )
        several = hint == tuple[str, ...]
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[list[str] if several else hint, option],
        )


def _fields(kind: Any) -> Iterator[tuple[Field[Any], Any, type | None]]:
    """Each field, its type, and that type again where it is a dataclass."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        yield each, hint, hint if is_dataclass(hint) and isinstance(hint, type) else None


def _helps(kind: type) -> dict[str, str]:
    """What the docstring says of each attribute, in one sentence."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    plain = {name: " ".join(text.replace("``", "'").split()) for name, text in described}
    return {name: re.split(r"(?<=\.) ", text)[0] for name, text in plain.items()}
