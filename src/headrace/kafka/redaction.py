"""Which options hold secrets, and how options are shown without them."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.errors import LedgerError
from headrace.source.secrets import LEDGERS

REDACTED: Final = "***(redacted)"

_SHOW_AT_MOST: Final = 80

# Spark's own pattern (spark.redaction.regex), and what Kafka's secrets are called beyond it. A
# certificate chain is no secret, but its file often ends with the private key.
_SECRET: Final = re.compile(
    r"secret|password|passphrase|token|access[.]?key|jaas"
    r"|keystore[.](key|certificate[.]chain)$|(^|[.])key[.]pem$|ssl_key$",
    re.IGNORECASE,
)


def is_secret(option: str) -> bool:
    """Whether the value of this option must not be seen: its full name, or one without ``kafka.``.

    >>> [is_secret(o) for o in ("kafka.sasl.jaas.config", "ssl.keystore.key", "subscribe")]
    [True, True, False]
    """
    return option.lower() in LEDGERS or _SECRET.search(option) is not None


def redact(options: Mapping[str, str]) -> dict[str, str]:
    """The options as they may be shown; of a ledger's URL only the secrets are hidden.

    >>> redact({"subscribe": "orders", "kafka.ssl.key.password": "hunter2"})
    {'subscribe': 'orders', 'kafka.ssl.key.password': '***(redacted)'}
    """
    return {
        option: _redacted(option, value) if is_secret(option) else value
        for option, value in options.items()
    }


def shown(option: str, value: str) -> str:
    """One option for an error's text: ``kafka.client.id='a'``, given its name without ``kafka.``.

    >>> shown("client.id", "a")
    "kafka.client.id='a'"
    """
    if is_secret(option):
        return f"kafka.{option}={REDACTED}"
    cut = value if len(value) <= _SHOW_AT_MOST else f"{value[:_SHOW_AT_MOST]}..."
    return f"kafka.{option}={cut!r}"


def _redacted(option: str, value: str) -> str:
    if option.lower() not in LEDGERS:
        return REDACTED
    from headrace.ledger import redact_url  # noqa: PLC0415  (no task needs a ledger)

    try:
        return redact_url(value)
    except LedgerError:  # whoever opens it says what is wrong; here nothing of it can be shown
        return REDACTED
