"""Access to a receiver that listens: senders' tokens, and its side of TLS; both can be renewed."""

import hmac
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from headrace.certificates import server_context, validity_trouble
from headrace.core.options import require_name
from headrace.errors import OptionError
from headrace.receivers.settings import HttpSettings, TcpSettings, TlsFiles, require_token

_LOG: Final = logging.getLogger("headrace.receivers")

_UNNAMED: Final = "default"


class Tokens:
    """Tokens of senders, by name; without any token, everybody may send.

    In a file each line is a name, a space and a token, or a token alone, whose name is ``default``.
    Empty lines and those that begin with ``#`` mean nothing. The names are for logs and metrics, so
    that you can see which sender still shows an old token.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = {name: token.encode() for name, token in tokens.items()}

    @classmethod
    def of_file(cls, file: str) -> Self:
        """The tokens of a file.

        Raises:
            OptionError: It cannot be read, has no token, a line of it is no token, or two have the
                same name. No token is shown.
        """
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise OptionError(
                f"The file of tokens {file} cannot be read: {reason}; name another one."
            ) from error
        tokens: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            *named, token = line.split(maxsplit=1)
            name = named[0] if named else _UNNAMED
            what = f"Line {number} of the file of tokens {file}"
            if named:
                require_name(f"The name in line {number} of the file of tokens {file}", name)
            require_token(token.rstrip(), what)
            if name in tokens:
                raise OptionError(f"{what} has the name {name!r} of an earlier one; rename it.")
            tokens[name] = token.rstrip()
        if not tokens:
            raise OptionError(
                f"The file of tokens {file} has none, and would let in everybody; write a name, a"
                " space and a token into it, or leave it out."
            )
        return cls(tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tokens, in their order; none where everybody may send."""
        return tuple(self._tokens)

    def name_of(self, shown: bytes) -> str | None:
        """The name of the token that is shown; None if it is none of them.

        It takes as long for a token that is nearly right as for any other.
        """
        found = None
        for name, token in self._tokens.items():
            if hmac.compare_digest(shown, token):
                found = name
        return found


class Access:
    """Present access to one receiver.

    Raises:
        OptionError: A file of certificates or of tokens cannot be used.
    """

    def __init__(self, settings: HttpSettings | TcpSettings) -> None:
        self._settings = settings
        self.context, self.tokens = _context(settings.tls), _tokens(settings)
        if (trouble := _trouble(settings.tls, self.context)) is not None:
            _LOG.warning("%s; clients will refuse it until it is replaced.", trouble)

    def reload(self) -> None:
        """Read the files again; whoever connects from now on meets what they say.

        If a file cannot be used, OptionError says why, and everything stays as it was.
        """
        context, tokens = _context(self._settings.tls), _tokens(self._settings)
        if (trouble := _trouble(self._settings.tls, context)) is not None:
            raise OptionError(f"{trouble}; put a valid one there, and ask again.")
        self.context, self.tokens = context, tokens

    @property
    def description(self) -> str:
        """Summary of the access in force, for the log: the tokens' names alone."""
        names = ", ".join(self.tokens.names)
        tokens = f"the tokens {names}" if names else "no tokens"
        file = self._settings.tls.certificate_file
        return f"{tokens}, {'no TLS' if file is None else f'the certificate of {file}'}"


def _context(tls: TlsFiles) -> ssl.SSLContext | None:
    if tls.certificate_file is None:
        return None
    return server_context(tls.certificate_file, tls.key_file, tls.client_ca_file)


def _trouble(tls: TlsFiles, context: ssl.SSLContext | None) -> str | None:
    if tls.certificate_file is None or context is None:
        return None
    why = validity_trouble(context, tls.certificate_file)
    return why and f"The certificate of {tls.certificate_file} {why}"


def _tokens(settings: HttpSettings | TcpSettings) -> Tokens:
    if settings.token_file is not None:
        return Tokens.of_file(settings.token_file)
    return Tokens({} if settings.token is None else {_UNNAMED: settings.token})
