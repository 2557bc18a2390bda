"""Ceilings of the source and the tests, in ``budget.toml``: `make lint` fails above one.

``python -m tests.budget`` prints each measure beside its ceiling and fails above one; with
``--lower`` it writes the measures into the file as the new ceilings, where they are lower.
"""

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.measure import (
    ROOT,
    SOURCE,
    TESTS,
    Module,
    docstring_lines,
    enums,
    flags,
    import_circles,
    modules,
    statements,
    table,
    value_classes,
)

BUDGET: Final = ROOT / "budget.toml"
TOTAL: Final = "total"
"""The name of the row of the whole source."""

SHOWN: Final = ("cli", "dashboard", "status", "metrics")
"""Packages of what operators see, which have a ceiling together."""

Measures = dict[str, dict[str, int]]
"""By package, or ``total`` or ``tests``, the value of each measure."""


@dataclass(frozen=True)
class Excess:
    """A value above its ceiling, or without one."""

    row: str
    measure: str
    value: int
    ceiling: int | None

    def __str__(self) -> str:
        if self.ceiling is None:
            return (
                f"budget.toml has no ceiling for `{self.measure}` of [{self.row}], which is"
                f" {self.value}; add it in the commit that says what the user gets for it."
            )
        return (
            f"`{self.measure}` of [{self.row}] is {self.value}, and budget.toml allows"
            f" {self.ceiling}; take something out, or raise the ceiling in the commit that says"
            " what the user gets for it."
        )


def sizes(parsed: Sequence[Module]) -> dict[str, int]:
    """Return what is counted of some modules."""
    return {
        "lines": sum(len(module.text.splitlines()) for module in parsed),
        "docstring_lines": sum(map(docstring_lines, parsed)),
        "statements": sum(map(statements, parsed)),
        "modules": len(parsed),
        "value_classes": sum(len(value_classes(module)) for module in parsed),
        "enums": sum(len(enums(module)) for module in parsed),
    }


def measures(source: Path = SOURCE, tests: Path = TESTS) -> Measures:
    """Return the value of each measure that has a ceiling."""
    parsed = list(modules(source).values())
    packages: dict[str, list[Module]] = {}
    for module in parsed:
        packages.setdefault(module.package or "headrace", []).append(module)
    fields = [
        count
        for module in parsed
        for name, count in value_classes(module).items()
        if name.endswith(("Settings", "Options"))
    ]
    options = flags()
    shown = (packages.get(name, []) for name in SHOWN)
    total = sizes(parsed) | {
        "enum_members": sum(sum(enums(module).values()) for module in parsed),
        "settings": sum(fields),
        "flags": len(set(options)),
        "flags_of_commands": len(options),
        "lines_shown_to_operators": sum(sizes(each)["lines"] for each in shown),
        **_tables(),
    }
    of_tests = sizes(list(modules(tests).values()))
    kept = ("lines", "statements", "modules")
    return {
        TOTAL: total,
        "tests": {name: of_tests[name] for name in kept},
        **{name: sizes(packages[name]) for name in sorted(packages)},
    }


def ceilings(file: Path = BUDGET) -> Measures:
    """Read the ceilings.

    Raises:
        SystemExit: There is no such file, it is no TOML, or a ceiling is no whole number.
    """
    try:
        read = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SystemExit(f"The ceilings cannot be read from {file}: {error}.") from None
    for row, values in read.items():
        if not isinstance(values, dict):
            raise SystemExit(f"{file}: `{row}` stands in no table; write it below [{TOTAL}].")
        for name, value in values.items():
            if type(value) is not int or value < 0:
                raise SystemExit(
                    f"{file}: `{name}` of [{row}] is {value!r}; a ceiling is a whole number, 0 or"
                    " more."
                )
    return read


def excesses(now: Measures, allowed: Measures) -> list[Excess]:
    """Return each value that is above its ceiling or has none.

    Raises:
        SystemExit: A ceiling is of something that is not measured.
    """
    for row, values in allowed.items():
        for name in values:
            if name not in now.get(row, {}):
                raise SystemExit(
                    f"budget.toml has a ceiling for `{name}` of [{row}], which is not measured or"
                    " no longer there; delete it."
                )
    return [
        Excess(row, name, value, ceiling)
        for row, values in now.items()
        for name, value in values.items()
        if (ceiling := allowed.get(row, {}).get(name)) is None or value > ceiling
    ]


def as_toml(now: Measures, allowed: Measures) -> str:
    """Return the file of ceilings: the lower one of each value and its ceiling."""
    rows = []
    for row, values in now.items():
        low = {
            name: min(value, allowed.get(row, {}).get(name, value))
            for name, value in values.items()
        }
        rows.append("\n".join([f"[{row}]", *(f"{name} = {value}" for name, value in low.items())]))
    return "\n\n".join([_HEAD, *rows]) + "\n"


_HEAD: Final = """\
# What the source and the tests may measure at most: `make lint` fails above a ceiling.
# A commit that removes something lowers them (`make budget`). A commit that raises
# one says what the user gets for it."""


def _tables() -> dict[str, int]:
    from headrace.ledger.tables import gate, metadata

    return {"tables": len(metadata.tables), "columns_of_gate": len(gate.columns)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status is 1 above a ceiling."""
    parser = argparse.ArgumentParser(prog="python -m tests.budget", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print what is above its ceiling only")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings in budget.toml")
    chosen = parser.parse_args(arguments)
    now, allowed = measures(), ceilings() if BUDGET.exists() or chosen.check else {}
    if chosen.lower:
        BUDGET.write_text(as_toml(now, allowed))
        allowed = ceilings()
    if not chosen.check:
        _print(now, allowed)
    found = excesses(now, allowed)
    sys.stderr.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


def _print(now: Measures, allowed: Measures) -> None:
    out = sys.stdout
    for name, value in now[TOTAL].items():
        out.write(f"{name:28} {value:>8,} of {allowed.get(TOTAL, {}).get(name, 0):>8,}\n")
    columns = tuple(sizes([]))
    out.write("\n" + " " * 11 + "".join(f"{name:>17}" for name in columns) + "\n")
    for row, values in now.items():
        if row != TOTAL:
            cells = (f"{values[name]:,}" if name in values else "" for name in columns)
            out.write(f"{row:11}" + "".join(f"{cell:>17}" for cell in cells) + "\n")
    out.write("\n")
    out.writelines(f"{name}: {value}\n" for name, value in table())
    out.writelines(f"a circle: {' '.join(group)}\n" for group in import_circles())


if __name__ == "__main__":
    sys.exit(main())
