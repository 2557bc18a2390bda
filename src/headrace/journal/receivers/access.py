"""Access control of listening receivers: senders' tokens, and the server side of TLS."""

import hmac
import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from headrace.certificates import server_context, validity_trouble
from headrace.core.options import require_name
from headrace.errors import OptionError
from headrace.journal.receivers.settings import ListeningSettings, TlsFiles, require_token

_LOG: Final = logging.getLogger("headrace.receivers")

_UNNAMED: Final = "default"


class Tokens:
    """Tokens that authenticate senders, each with a name. If there is no token, anyone may send.

    A line of a token file is a name, a space and a token. A line with only a token gets the name
    ``default``. Empty lines and lines that begin with ``#`` are ignored. Logs and metrics show the
    names, so you can see which sender still uses an old token.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = {name: token.encode() for name, token in tokens.items()}

    @classmethod
    def of_file(cls, file: str) -> Self:
        """Read tokens from a token file, and return them with their names.

        Raises:
            OptionError: The file cannot be read, has no token, has a line without a valid token, or
                has two tokens with the same name. The message never contains a token.
        """
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise OptionError(
                f"The token file {file} cannot be read: {reason}; name another file."
            ) from error
        tokens: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            *named, token = line.split(maxsplit=1)
            name = named[0] if named else _UNNAMED
            line_name = f"Line {number} of the token file {file}"
            if named:
                require_name(f"The name in line {number} of the token file {file}", name)
            require_token(token.rstrip(), line_name)
            if name in tokens:
                raise OptionError(
                    f"{line_name} repeats the name {name!r}; give each token a name of its own."
                )
            tokens[name] = token.rstrip()
        if not tokens:
            raise OptionError(
                f"The token file {file} contains no token, so anyone could send; write a name, a"
                " space and a token into it, or start without a token file."
            )
        return cls(tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tokens, in the order of the file; empty if anyone may send."""
        return tuple(self._tokens)

    def name_of(self, shown: bytes) -> str | None:
        """Return the name of the token that a sender sent, or None for an unknown token.

        Each comparison takes constant time, so the response time reveals nothing about a token.
        """
        match = None
        for name, token in self._tokens.items():
            if hmac.compare_digest(shown, token):
                match = name
        return match


class Access:
    """Access control of one receiver: its senders' tokens, and its current TLS certificate.

    Certificates expire, and operators replace them by renaming files. So each new connection
    checks whether a file has changed, which takes microseconds. An unusable new certificate is
    logged once, and the previous certificate stays in use.

    Raises:
        OptionError: The token file, or a file with a certificate or key, cannot be used.
    """

    def __init__(self, settings: ListeningSettings) -> None:
        self._tls = settings.tls
        self.tokens = _tokens(settings)
        self._seen = _versions(settings.tls)
        self._context = _context(settings.tls)
        if (trouble := _trouble(settings.tls, self._context)) is not None:
            _LOG.warning("%s; clients will refuse it until it is replaced.", trouble)

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context for a new connection, reloaded if a file has changed; None without TLS."""
        if self._context is not None and (seen := _versions(self._tls)) != self._seen:
            self._seen = seen
            self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            context = _context(self._tls)
            trouble = _trouble(self._tls, context)
        except OptionError as error:
            context, trouble = None, str(error)
        if trouble is not None:
            _LOG.error("%s The previous certificate stays in use.", trouble.rstrip(".") + ".")
            return
        self._context = context
        _LOG.info("New connections use the new certificate in %s.", self._tls.certificate_file)


def _versions(tls: TlsFiles) -> list[tuple[int, int, int] | None]:
    """Return a version of each TLS file, to detect whether the file has changed.

    A version is the modification time (ns), inode and size (bytes); None for a file that is missing
    or not configured.
    """
    versions: list[tuple[int, int, int] | None] = []
    for file in (tls.certificate_file, tls.key_file, tls.client_ca_file):
        try:
            stat = None if file is None else os.stat(file)  # noqa: PTH116  (in microseconds)
        except OSError:
            stat = None
        versions.append(None if stat is None else (stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return versions


def _context(tls: TlsFiles) -> ssl.SSLContext | None:
    if tls.certificate_file is None:
        return None
    return server_context(tls.certificate_file, tls.key_file, tls.client_ca_file)


def _trouble(tls: TlsFiles, context: ssl.SSLContext | None) -> str | None:
    if tls.certificate_file is None or context is None:
        return None
    why = validity_trouble(context, tls.certificate_file)
    return why and f"The certificate of {tls.certificate_file} {why}"


def _tokens(settings: ListeningSettings) -> Tokens:
    if settings.token_file is not None:
        return Tokens.of_file(settings.token_file)
    return Tokens({} if settings.token is None else {_UNNAMED: settings.token})
