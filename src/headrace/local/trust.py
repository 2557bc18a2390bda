"""Let Java trust the certificates that this machine trusts.

A Java from the system's packages does already. Any other has a list of its own, which lacks what an
administrator has added, such as the certificate of a company's proxy.
"""

import ssl
import struct
from collections.abc import Sequence
from pathlib import Path


def trust_options(folder: Path) -> tuple[str, ...]:
    """The options that make a Java trust this machine's certificates, which go into ``folder``."""
    store = folder / "trusted.jks"
    store.write_bytes(key_store(system_certificates()))
    return (f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=jks")


def system_certificates() -> list[bytes]:
    """The authorities' certificates that OpenSSL trusts here (``SSL_CERT_FILE`` counts), as DER."""
    paths = ssl.get_default_verify_paths()
    bundles = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:  # Debian has no file at OpenSSL's own place, but a bundle in its folder
        bundles.append(Path(paths.capath, "ca-certificates.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for bundle in bundles:
        if bundle.is_file():
            context.load_verify_locations(bundle)
            return context.get_ca_certs(binary_form=True)
    return []


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A key store in Java's format JKS, version 2, that holds trusted certificates only.

    The keyed hash at its end, which Java reads only if it is given a password, is left out.
    """
    entries = [
        struct.pack(">I", 2)  # a trusted certificate: its alias, its date, its type, itself
        + _text(str(number))
        + struct.pack(">q", 0)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    ]
    return struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
