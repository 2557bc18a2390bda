"""Settings with which the dashboard is started."""

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.options import require_whole
from headrace.errors import OptionError

SHORTEST_TOKEN: Final = 16
"""Characters: fewer could be guessed."""

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""The names of this machine that a browser on it uses."""


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Address and rights of the dashboard.

    Attributes:
        ledger: The URL of the ledger that it shows.
        host: The address that it listens on. On any but this machine's own, reading needs the token
            too, and a token has to be given.
        port: The port; 0 takes any that is free.
        token: What somebody shows to sign in; None only where nobody is to.
        allowed_hosts: Names, besides those of `host`, by which browsers may ask for the dashboard,
            such as that of a proxy before it. Requests for any other name are refused, so that no
            page from elsewhere reaches it by a name of its own.
        certificate: The certificate to serve HTTPS with, as a PEM file; None serves HTTP.
        key: Its private key, as a PEM file.
        source_options: The stream's options, with which dead letters are sent again.
    """

    ledger: str
    host: str = "127.0.0.1"
    port: int = 8480
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_whole("The dashboard's port", self.port, 0, 65_535)
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise OptionError(
                f"The token has {len(self.token)} characters; give at least {SHORTEST_TOKEN}, such"
                " as those of `openssl rand -hex 32`."
            )
        if self.token is None and not self.is_local:
            raise OptionError(
                f"The dashboard would listen on {self.host}, which others reach, without a token;"
                " give one with --token-file or HEADRACE_DASHBOARD_TOKEN."
            )
        if (self.certificate is None) != (self.key is None):
            raise OptionError(
                "Of --tls-certificate and --tls-key one is given; give both, or neither."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    @property
    def names(self) -> frozenset[str]:
        """The names that requests may be for, in small letters."""
        own = LOOPBACK if self.is_local else {self.host}
        return frozenset(each.lower().strip("[]") for each in {*own, *self.allowed_hosts})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_hex(32)
