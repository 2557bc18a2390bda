"""Import and call of user functions that a setting names, such as a function that returns a token.

The setting has the form ``module:function``. It comes only from the program, its environment or a
command line. So stored data cannot choose a module to import. Each process imports the module and
calls the function itself, and the returned value stays in the process.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Final

from headrace.errors import OptionError

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def wrong_name(setting: str, name: str, returns: str) -> str:
    """Return an error message if ``name`` does not have the form ``module:function``.

    Args:
        setting: The name of the setting, for the message.
        name: The value of the setting. The message does not contain it, because a user may have set
            a secret by mistake.
        returns: Description of the value that the function must return, for the message.

    Returns:
        An empty text if the form is right.
    """
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{setting} (its value is not shown, because it may be a secret) does not name a function;"
        f" write module:function, for a function that returns {returns}."
    )


def load_function(setting: str, name: str, returns: str) -> Callable[[], object]:
    """Import the function that a setting names, and return the function.

    Args:
        setting: The name of the setting, for error messages.
        name: The value of the setting, in the form ``module:function``.
        returns: Description of the value that the function must return, for error messages.

    Raises:
        OptionError: The form is wrong, the import fails, the module has no such function, or the
            function needs arguments.
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
        hint = "" if is_itself else f", because {lacks} is not installed"
        raise OptionError(
            f"{setting} is {name!r}, but importing {module} raised {type(error).__name__}{hint};"
            f" make {module} importable in each process: install it, put its folder on PYTHONPATH,"
            " or send it to the executors with spark.submit.pyFiles."
        ) from None
    if not callable(function):
        raise OptionError(
            f"{setting} is {name!r}, but {module} has no function {attribute}; name a function of"
            f" {module}."
        )
    if not _takes_nothing(function):
        raise OptionError(
            f"{setting} is {name!r}, a function that needs arguments; name a function that can be"
            f" called without arguments and returns {returns}."
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
    """Call a user function.

    Args:
        setting: The name of the setting that names the function, for the error message.
        name: The value of the setting, in the form ``module:function``.
        function: The function, from `load_function`.

    Returns:
        The function's result and an empty text. If the function raises an exception, None and an
        error message. The message does not contain the exception's text, which may contain a
        secret.
    """
    try:
        return function(), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (the user's, its text a secret; it may exit)
        module, _, attribute = name.partition(":")
        return None, (
            f"{name}, of {setting}, raised {type(error).__name__}, whose text is not shown because"
            f" it may contain a secret; to see the text, run: python -c 'import {module};"
            f" {module}.{attribute}()'."
        )
