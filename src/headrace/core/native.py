"""The native engine: an optional package, which reads and decodes faster than Python."""

import logging
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import ModuleType
from typing import Final

from headrace import __version__
from headrace.core.options import word

ENGINE: Final = "headrace.engine"

_LOG: Final = logging.getLogger("headrace")


class Engine(StrEnum):
    """Engine of a source."""

    NATIVE = "native"
    """The native engine, where it is installed and can do the work; else the Python engine."""
    PYTHON = "python"


def engine_of(options: Mapping[str, str]) -> Engine:
    """Return the engine in a source's options, the native one by default.

    Raises:
        OptionError: no engine has this name.
    """
    return word(ENGINE, options.get(ENGINE, Engine.NATIVE), Engine)


@cache  # and so one line in the log of a process
def native_engine() -> ModuleType | None:
    """Return the module of the native engine; None if it is missing or of another version."""
    try:
        import headrace_native  # noqa: PLC0415  (an extra)
    except ImportError:
        return None
    if headrace_native.__version__ != __version__:
        _LOG.warning(
            "The Python engine is used: headrace-native is %s, and Headrace is %s; install the same"
            " version of both.",
            headrace_native.__version__,
            __version__,
        )
        return None
    return headrace_native  # type: ignore[no-any-return]
