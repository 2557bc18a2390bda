"""Certificates of encrypted connections, as users name their files."""

import ssl

from headrace.errors import OptionError


def client_context(
    server: str, ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """What a client of a server trusts, and shows of itself.

    Args:
        server: It, as an error names it.
        ca_file: The certificates of authorities to trust (PEM); None for the system's own.
        certificate_file: The client's own (PEM), for servers that ask for one.
        key_file: The key of that one, where it is in another file.

    Raises:
        OptionError: The files cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate_file is not None:
            context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        raise OptionError(
            f"The certificates for {server} cannot be used: {error.strerror or error}; name other"
            " files."
        ) from error
    return context
