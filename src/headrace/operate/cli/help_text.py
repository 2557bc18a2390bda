"""Renders the help of a command as plain text: one line for each command, words instead of types.

Typer's own help imports rich, which takes longer than most commands.
"""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

NARROWEST, WIDEST = 40, 100

_NAMES_WIDTH: Final = 28
"""If the name of an option or command is longer than this (characters), its help begins on the next
line."""


def help_text(
    command: Any,
    context: Any,
    *,
    groups: Mapping[str, Mapping[str, str]] | None = None,
    examples: Sequence[str] = (),
) -> str:
    """Return the help of a typer command.

    ``command`` and ``context`` are Any, because their classes have no public names.
    ``groups`` maps a group's title to the help of each subcommand, by the subcommand's name.
    Default: one group with the command's own subcommands and their short help.
    """
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    shown = [item for item in command.get_params(context) if not getattr(item, "hidden", False)]
    arguments = [item for item in shown if item.param_type_name == "argument"]
    options = [item for item in shown if item.param_type_name == "option"]
    own = getattr(command, "commands", {})
    if groups is None and own:
        groups = {"Commands": {name: item.get_short_help_str(200) for name, item in own.items()}}
    words = [context.command_path, *map(_usage, arguments)]
    words += ["COMMAND"] if own else []
    usage = f"Usage: {' '.join([*words, '[OPTIONS]'])}"
    parts = [textwrap.fill(usage, width, subsequent_indent="       ")]
    parts.append("\n".join(_filled(command.help or "", width)).rstrip())
    names = [name for lines in (groups or {}).values() for name in lines]
    for title, lines in (groups or {}).items():
        parts.append(_section(title, lines.items(), width, max(map(len, names))))
    parts.append(_section("Arguments", [(_word(item), _said(item)) for item in arguments], width))
    parts.append(_section("Options", [(_names(item), _said(item)) for item in options], width))
    if examples:
        title = "Example" if len(examples) == 1 else "Examples"
        parts.append("\n".join([f"{title}:", *(f"  {item}" for item in examples)]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _filled(text: str, width: int) -> Iterator[str]:
    """Yield a docstring's lines, wrapped to ``width``; keep line breaks after a period or colon."""
    sentence: list[str] = []
    for line in [*text.strip().splitlines(), ""]:
        sentence.append(line.strip())
        if not line.strip() or line.rstrip().endswith((".", ":")):
            yield from textwrap.wrap(" ".join(sentence), width) or ([""] if text else [])
            sentence = []


def _section(
    title: str, lines: Iterable[tuple[str, str]], width: int, names_width: int | None = None
) -> str:
    rows = list(lines)
    if not rows:
        return ""
    short = [len(name) for name, _ in rows if len(name) <= _NAMES_WIDTH]
    most = names_width or max(short, default=_NAMES_WIDTH)
    indent = " " * (most + 4)
    shown = [f"{title}:"]
    for name, text in rows:
        filled = textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
        if len(name) <= most and filled:
            filled[0] = f"  {name:<{most}}  {filled[0][len(indent) :]}"
        else:
            filled.insert(0, f"  {name}")
        shown += filled
    return "\n".join(shown)


def _word(parameter: Any) -> str:
    """Return a parameter's placeholder: its choices, ``N`` for a number, or its name."""
    default = parameter.default
    if parameter.metavar:
        return str(parameter.metavar)
    if isinstance(default, Enum):
        return "|".join(type(default))
    return "N" if isinstance(default, (int, float)) else parameter.name.rpartition("_")[2].upper()


def _usage(argument: Any) -> str:
    word = _word(argument) if argument.required else f"[{_word(argument)}]"
    return word if argument.nargs == 1 else f"{word}..."


def _names(option: Any) -> str:
    names = sorted([*option.opts, *option.secondary_opts], key=len)
    takes_value = not option.is_flag and not option.count
    return ", ".join(names) + (f" {_word(option)}" if takes_value else "")


def _said(parameter: Any) -> str:
    noted = [f"env: {parameter.envvar}"] if parameter.envvar else []
    shown, default = parameter.show_default, parameter.default
    if isinstance(shown, str):
        noted.append(f"default: {shown}")
    elif shown and default not in (None, "") and not getattr(parameter, "is_flag", False):
        noted.append(f"default: {default.value if isinstance(default, Enum) else default}")
    if parameter.required and parameter.param_type_name == "option":
        noted.append("required")
    help_ = parameter.help or ""
    return f"{help_} [{'; '.join(noted)}]".strip() if noted else help_
