"""A scenario as a file: TOML, with one error that names the file, the key and what is allowed."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.control import EstimatorSettings, HopSettings
from headrace.errors import OptionError
from headrace.simulation.scenario import (
    Dead,
    Disturbance,
    Load,
    LostSignals,
    Pause,
    Scenario,
    Shape,
    SimulatedStage,
    Slow,
    Spike,
)

_KINDS: Final[dict[str, type[Disturbance]]] = {
    kind.kind: kind for kind in (Slow, Pause, Dead, Spike, LostSignals)
}
T = TypeVar("T")

_SETTINGS: Final[dict[str, type[Any]]] = {"hop": HopSettings, "estimator": EstimatorSettings}
_NUMBERS: Final = ("name", "duration_s", "signal_ms", "look_ms", "sample_ms")
_KEYS: Final = (*_NUMBERS, *_SETTINGS, "stage", "disturbance")
_TYPES: Final[dict[Any, tuple[tuple[type, ...], str]]] = {
    int: ((int,), "a whole number"),
    int | None: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    float | None: ((int, float), "a number"),
    str: ((str,), "a text"),
}


def read_scenario(path: Path) -> Scenario:
    """Read what is to be simulated from a TOML file; `OptionError` names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"The file {path} cannot be read: {error.strerror}; name a TOML file."
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError(f"The file {path} is not UTF-8; TOML is.") from error
    try:
        return scenario_of(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"The file {path} is not TOML: {error}.") from error
    except OptionError as error:
        raise OptionError(f"In {path}: {error}") from error


def scenario_of(table: Mapping[str, Any]) -> Scenario:
    """Return the scenario in the tables of a TOML document."""
    settings: dict[str, Any] = {
        name: _made(kind, _table(table.get(name, {}), f"[{name}]"), f"[{name}]")
        for name, kind in _SETTINGS.items()
    }
    for name in table:
        if name not in _KEYS:
            raise OptionError(f"{name!r} is no key of a scenario; the keys are {', '.join(_KEYS)}.")
    scenario = {key: value for key, value in table.items() if key in _NUMBERS}
    scenario["stages"] = tuple(
        _stage(stage, f"[[stage]] number {number}", settings)
        for number, stage in enumerate(_tables(table.get("stage", []), "stage"), start=1)
    )
    disturbances = _tables(table.get("disturbance", []), "disturbance")
    scenario["disturbances"] = tuple(
        _disturbance(each, f"[[disturbance]] number {number}")
        for number, each in enumerate(disturbances, start=1)
    )
    return _made(Scenario, scenario, "the file")


def _stage(table: Mapping[str, Any], where: str, settings: Mapping[str, Any]) -> SimulatedStage:
    values = dict(table)
    for name, kind in _SETTINGS.items():
        own = _table(values.get(name, {}), f"{name} of {where}")
        common = {f.name: getattr(settings[name], f.name) for f in fields(kind)}
        values[name] = _made(kind, common | dict(own), f"{name} of {where}")
    if "after" in values:
        after = values["after"]
        values["after"] = (after,) if isinstance(after, str) else _strings(after, where)
    if "load" in values:
        values["load"] = _load(values["load"], f"load of {where}")
    return _made(SimulatedStage, values, where)


def _load(value: Any, where: str) -> Load:
    """A rate that stays, or a table of points with a shape."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Load(((0, value),))
    table = dict(_table(value, where))
    points = table.get("points")
    if not isinstance(points, list) or not all(
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in point)
        for point in points
    ):
        raise OptionError(
            f"points in {where} is {points!r}; it must be a list of pairs of a time (s) and a rate"
            " (records/s), such as [[0, 1000], [60, 5000]]."
        )
    table["points"] = tuple((at_s, per_s) for at_s, per_s in points)
    if "shape" in table:
        if table["shape"] not in list(Shape):
            raise OptionError(
                f"shape in {where} is {table['shape']!r}; it must be one of: {', '.join(Shape)}."
            )
        table["shape"] = Shape(table["shape"])
    return _made(Load, table, where)


def _disturbance(table: Mapping[str, Any], where: str) -> Disturbance:
    values = dict(table)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise OptionError(f"kind in {where} is {kind!r}; it must be one of: {', '.join(_KINDS)}.")
    return _made(_KINDS[kind], values, where)


def _made(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A value of this kind, from values by name; its own errors say what is allowed."""
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise OptionError(f"{name!r} in {where} is no key; the keys are {', '.join(known)}.")
        types, allowed = _TYPES.get(known[name].type, ((object,), ""))
        if not isinstance(value, types) or (isinstance(value, bool) and types != (object,)):
            raise OptionError(f"{name} in {where} is {value!r}; it must be {allowed}.")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise OptionError(f"{name!r} is missing in {where}; give it a value.")
    try:
        return kind(**values)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{where} is {value!r}; it must be a table.")
    return value


def _tables(value: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise OptionError(f"{name!r} is no list of tables; begin each with [[{name}]].")
    return [_table(each, f"[[{name}]]") for each in value]


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"after in {where} is {value!r}; it must be a list of stages' names.")
    return tuple(value)
