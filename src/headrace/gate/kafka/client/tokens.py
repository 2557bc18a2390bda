"""Tokens for OAUTHBEARER from a function of the user, set by the option ``kafka.oauth.token``.

The option names the function as ``module:function``. Each process imports and calls the function
itself, and sends a token only to the brokers.
"""

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from headrace.core.named_functions import call, load_function
from headrace.errors import BrokerError, OptionError

OPTION: Final = "oauth.token"
_SETTING: Final = f"kafka.{OPTION}"
SHAPE: Final = "(token, expiry in seconds since 1970, principal)"

_LOG: Final = logging.getLogger("headrace.kafka")
_MOST_S: Final = 10 * 365 * 86_400.0  # A later expiry is in milliseconds.
_checked: set[str] = set()

Token = tuple[str, float, str, dict[str, str]]


def check_tokens(name: str) -> None:
    """Call the token function once per process, as a check; raise `OptionError` if it fails."""
    if name in _checked:
        return
    try:
        fetch_token(name)
    except BrokerError as error:
        raise OptionError(str(error)) from None
    _checked.add(name)


def fetch_token(name: str) -> Token:
    """Call the token function. Return token, expiry (s), principal and empty extensions.

    BrokerError is raised if the function raised an exception. OptionError is raised if the function
    does not exist or returns an invalid result.
    """
    value: Any
    value, raised = call(_SETTING, name, load_function(_SETTING, name, SHAPE))
    if raised:
        raise BrokerError(raised)
    wrong = _wrong(value)
    if wrong:
        raise OptionError(f"{name}, of {_SETTING}, {wrong}; it must return {SHAPE}.")
    token, expiry_s, principal = value
    return token, float(expiry_s), principal, {}


def with_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new client's settings; a token function named in ``config`` becomes a callback."""
    settings = {name: value for name, value in config.items() if name != OPTION}
    name = config.get(OPTION)
    if name is None:
        return settings
    # Fetch the first token now: the client would wait ten seconds, and then give no reason.
    first = [fetch_token(name)]

    def refresh(_config: str) -> Token:
        try:
            return first.pop() if first else fetch_token(name)
        except (BrokerError, OptionError) as error:
            _LOG.warning("%s The client calls the token function again in ten seconds.", error)
            raise

    return {**settings, "oauth_cb": refresh}


def _wrong(value: object) -> str:
    """Return what is wrong with a function's result, without its content; empty if it is valid."""
    if not isinstance(value, tuple) or len(value) != 3:
        return f"returned a {type(value).__name__} that is no tuple of three"
    token, expiry_s, principal = value
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        return "returned a token that is no text of printable characters without spaces"
    if not isinstance(principal, str) or not principal.strip():
        return "returned no principal"
    if isinstance(expiry_s, bool) or not isinstance(expiry_s, int | float):
        return f"returned an expiry that is a {type(expiry_s).__name__}, and no number"
    life_s = expiry_s - time.time()
    if not 0 < life_s <= _MOST_S:
        when = "past" if life_s <= 0 else "years away, as one in milliseconds is"
        return f"returned an expiry that is {when}"
    return ""
