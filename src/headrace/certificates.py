"""TLS contexts for clients and servers, built from the certificate files that a user names."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.errors import OptionError

_OUT_OF_TIME: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's verification error codes for a certificate's dates (X509_V_ERR_CERT_...), in words."""


def client_context(
    server: str, ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        server: The server to connect to, for error messages.
        ca_file: File with the certificates of the authorities to trust (PEM). None: the system's
            authorities.
        certificate_file: File with the client's own certificate (PEM), if the server requests a
            certificate; else None.
        key_file: File with the client's key, without a passphrase. None: ``certificate_file``
            contains the key.

    Raises:
        OptionError: A file cannot be read or used.
    """
    for file in (ca_file, certificate_file, key_file):
        _require_readable(file, server)
    return _made(lambda: _client_context(ca_file, certificate_file, key_file), server)


def server_context(
    certificate_file: str, key_file: str | None, client_ca_file: str | None
) -> ssl.SSLContext:
    """Return the TLS context of a server.

    Args:
        certificate_file: File with the server's certificate and its chain (PEM).
        key_file: File with the server's key, without a passphrase. None: ``certificate_file``
            contains the key.
        client_ca_file: File with the certificates of the authorities that must have issued each
            client's certificate (PEM). None: clients need no certificate.

    Raises:
        OptionError: A file cannot be read or used, or the key does not fit the certificate.
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
    """Return why clients refuse a server's certificate at the present time.

    The function performs a TLS handshake in memory, up to the check of the server's certificate,
    with a client that trusts only this certificate.

    Args:
        server: The TLS context of the server.
        certificate_file: File with the server's certificate (PEM).

    Returns:
        ``is not valid yet`` or ``has expired``; None if the certificate is valid now.
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
        return "the key has a passphrase, but must not have a passphrase"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not fit the certificate"
    if error.reason == "NO_CERTIFICATE_OR_CRL_FOUND" or error.reason is None:
        return "a file contains no certificate or no key (PEM)"
    return error.reason.replace("_", " ").lower()


def _no_passphrase() -> str:
    """Raise `ValueError`, so that OpenSSL does not ask for a passphrase at the terminal."""
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
