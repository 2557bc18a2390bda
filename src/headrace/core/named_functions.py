"""User functions that a setting names as ``module:function``, such as a provider of tokens.

The name comes only from the program, its environment or a command line, so stored data cannot
choose what is imported. Each process imports the module and calls the function. The returned value
stays in the process.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Final

from headrace.errors import OptionError

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def wrong_name(setting: str, name: str, returns: str) -> str:
    """Return an error text if ``name`` is not a ``module:function``, or an empty text.

    The error text does not include the name, which may be a secret by mistake.
    """
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{setting} (its value is not shown, for it may be a secret) is no name; write"
        f" module:function, of a function that returns {returns}."
    )


def load_function(setting: str, name: str, returns: str) -> Callable[[], object]:
    """Import the module of ``name`` and return its function; OptionError if that fails."""
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
        hint = "" if is_itself else f", for there is no {lacks}"
        raise OptionError(
            f"{setting} is {name!r}, and importing {module} raised {type(error).__name__}{hint}; it"
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
        pass  # no signature is available, for example for a builtin: try the call
    return True


def call(setting: str, name: str, function: Callable[[], object]) -> tuple[object, str]:
    """Call the function; return its result and an empty text, or None and an error text."""
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
