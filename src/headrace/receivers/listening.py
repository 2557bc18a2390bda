"""The sockets that receivers listen on."""

import socket

from headrace.errors import ReceiverError

_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Listen for TCP connections; port 0 is any that is free.

    Raises:
        ReceiverError: It is not possible: the port is taken, the host is not this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refused(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    listener.setblocking(False)
    return listener


def _refused(host: str, port: int, error: OSError) -> ReceiverError:
    return ReceiverError(
        f"Port {port} of {host!r} cannot be listened on ({error}); choose a free port of this"
        " machine, or 0 for any."
    )
