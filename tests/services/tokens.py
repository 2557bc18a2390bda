"""Functions for ``kafka.oauth.token``: one that brokers without keys take, and wrong ones."""

import base64
import json
import time
from typing import Any, NoReturn

SECRET = "hunter2"  # noqa: S105

calls = 0


def unsecured() -> tuple[str, float, str]:
    """A token without a signature (JWS, ``alg`` none), for five minutes."""
    global calls  # noqa: PLW0603
    calls += 1
    now_s = time.time()
    claims = {"sub": "app", "iat": now_s, "exp": now_s + 300}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    ]
    return f"{parts[0]}.{parts[1]}.", now_s + 300, "app"


def short_lived() -> tuple[str, float, str]:
    token, _, principal = unsecured()
    return token, time.time() + 2, principal


def raises() -> NoReturn:
    raise RuntimeError(SECRET)


def in_milliseconds() -> tuple[str, float, str]:
    return SECRET, (time.time() + 300) * 1000, "app"


def expired() -> tuple[str, float, str]:
    return SECRET, time.time() - 1, "app"


def text_expiry() -> Any:
    return SECRET, "tomorrow", "app"


def alone() -> Any:
    return SECRET


def two() -> Any:
    return SECRET, time.time() + 300


def in_bytes() -> Any:
    return SECRET.encode(), time.time() + 300, "app"


def spaced() -> tuple[str, float, str]:
    return f"{SECRET} \n", time.time() + 300, "app"


def nobodys() -> tuple[str, float, str]:
    return SECRET, time.time() + 300, " "


def needs_argument(_config: str) -> tuple[str, float, str]:
    return unsecured()
