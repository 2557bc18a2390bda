"""TLS contexts of clients and servers, from the certificate files that users name."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.errors import OptionError

_OUT_OF_TIME: Final = {9: "is not valid yet", 10: "has expired"}
"""Descriptions of OpenSSL's verification codes (X509_V_ERR_CERT_...)."""


def client_context(
    server: str, ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """Return a client's TLS context; OptionError, which names ``server``, if a file is unusable.

    ``ca_file`` has the certificates of trusted authorities (PEM); None trusts the system's
    authorities. ``certificate_file`` is the client's own certificate (PEM), for servers that
    request one. ``key_file`` has the key, if the key is not in the certificate's file.
    """
    for file in (ca_file, certificate_file, key_file):
        _require_readable(file, server)
    return _made(lambda: _client_context(ca_file, certificate_file, key_file), server)


def server_context(
    certificate_file: str, key_file: str | None, client_ca_file: str | None
) -> ssl.SSLContext:
    """Return a server's TLS context; OptionError if a file is unusable or the key does not fit.

    ``certificate_file`` has the server's certificate and its chain (PEM). ``key_file`` has the key,
    without a passphrase, if the key is not in the certificate's file. ``client_ca_file`` has the
    authorities that must have issued a client's certificate; None accepts clients without one.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_file, key_file, _no_passphrase)
        if client_ca_file is not None:
            context.load_verify_locations(client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    files = [file for file in (certificate_file, key_file, client_ca_file) if file]
    named = ", ".join(files)
    for file in files:
        _require_readable(file, named)
    return _made(make, named)


def validity_trouble(server: ssl.SSLContext, certificate_file: str) -> str | None:
    """Return why clients refuse a server's certificate now (not yet valid, expired), or None.

    Performs a handshake in memory, up to the server's certificate, with a client that trusts only
    this certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_tls = client.wrap_bio(to_client, to_server)
    server_tls = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (client_tls, server_tls, client_tls):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _OUT_OF_TIME.get(error.verify_code)
    return None


def _client_context(
    ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    if certificate_file is not None:
        context.load_cert_chain(certificate_file, key_file, _no_passphrase)
    return context


def _made(make: Callable[[], ssl.SSLContext], server: str) -> ssl.SSLContext:
    try:
        return make()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"The certificates for {server} cannot be used: {_reason(error)}; name other files."
        ) from error


def _reason(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return "the key has a passphrase, and must have none"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not fit the certificate"
    if error.reason == "NO_CERTIFICATE_OR_CRL_FOUND" or error.reason is None:
        return "a file has no certificate or no key in it (PEM)"
    return error.reason.replace("_", " ").lower()


def _no_passphrase() -> str:
    """Raise ValueError instead of letting OpenSSL prompt for a passphrase at the terminal."""
    raise ValueError("a passphrase is asked for")


def _require_readable(file: str | None, server: str) -> None:
    if file is None:
        return
    try:
        with Path(file).open("rb"):
            return
    except OSError as error:
        raise OptionError(
            f"The certificates for {server} cannot be used: {error.strerror} ({file}); name other"
            " files."
        ) from error
