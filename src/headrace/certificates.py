"""Certificates of encrypted connections, as users name their files."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.errors import OptionError

_OUT_OF_TIME: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes of a certificate (X509_V_ERR_CERT_...), in words."""


def client_context(
    server: str, ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """Return a client's TLS context: the authorities that it trusts, and its own certificate.

    Args:
        server: Server's name in an error.
        ca_file: The certificates of authorities to trust (PEM); None for the system's own.
        certificate_file: The client's own (PEM), for servers that ask for one.
        key_file: The key of that one, where it is in another file.

    Raises:
        OptionError: The files cannot be read.
    """
    for file in (ca_file, certificate_file, key_file):
        _require_readable(file, server)
    return _made(lambda: _client_context(ca_file, certificate_file, key_file), server)


def server_context(
    certificate_file: str, key_file: str | None, client_ca_file: str | None
) -> ssl.SSLContext:
    """Return a server's TLS context: its certificate, and the clients that it accepts.

    Args:
        certificate_file: Its own certificate, and those that lead to its authority (PEM).
        key_file: The key of the first one, without a passphrase, where it is in another file.
        client_ca_file: The authorities of which clients must show a certificate; None lets in
            clients without one.

    Raises:
        OptionError: A file cannot be read or used, or the key is of another certificate.
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
    """Return why no client accepts a server's certificate at this time; None where one may.

    A client that trusts exactly this certificate shakes hands with it in memory, up to the
    server's first answer, which has the certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (here, there, here):
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
    """OpenSSL would ask for one at the terminal."""
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
