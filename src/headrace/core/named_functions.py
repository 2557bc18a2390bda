"""Functions of the program that a setting names as ``module:function``, such as one for tokens.

The name comes from the program, its environment or a command line, and from nowhere else. Each
process imports the module and calls the function; what it returns stays in that process.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Final

from headrace.errors import OptionError

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def wrong_name(setting: str, name: str, returns: str) -> str:
    """Say what is wrong with a text that is no ``module:function``; empty for nothing.

    The text is not shown: it may be the secret itself.
    """
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{setting} (its value is not shown, for it may be a secret) is no name; write"
        f" module:function, of a function that returns {returns}."
    )


def load_function(setting: str, name: str, returns: str) -> Callable[[], object]:
    """Import the module and return the function.

    Raises:
        OptionError: There is no such function.
    """
    if wrong := wrong_name(setting, name, returns):
        raise OptionError(wrong)
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (a module of the user's, which may exit)
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        is_itself = lacks is None or f"{module}.".startswith(f"{lacks}.")
        what = "" if is_itself else f", for there is no {lacks}"
        raise OptionError(
            f"{setting} is {name!r}, and importing {module} raised {type(error).__name__}{what}; it"
            " must be there in each process: install it, put its folder on PYTHONPATH, or ship it"
            " to the executors with spark.submit.pyFiles."
        ) from None
    if not callable(function):
        raise OptionError(
            f"{setting} is {name!r}, and {module} has no function {attribute}; correct it."
        )
    if not _takes_nothing(function):
        raise OptionError(
            f"{setting} is {name!r}, which needs arguments; it is called without any: name a"
            f" function that needs none and returns {returns}."
        )
    return function  # type: ignore[no-any-return]


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        pass  # it does not say, so it is called
    return True


def call(setting: str, name: str, function: Callable[[], object]) -> tuple[object, str]:
    """Call the function: its answer, or nothing and a sentence about what it raised."""
    try:
        return function(), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (the user's, its text a secret; it may exit)
        module, _, attribute = name.partition(":")
        return None, (
            f"{name}, of {setting}, raised {type(error).__name__}, whose text is not shown, for it"
            f" may hold a secret; run it to see it: python -c 'import {module};"
            f" {module}.{attribute}()'."
        )
