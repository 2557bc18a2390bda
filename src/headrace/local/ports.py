"""TCP ports on the loopback address that nobody listens on."""

import secrets
import socket

from headrace.errors import SetupError

# Below the range from which Linux (32768-60999) and macOS (49152-65535) take the ports of outgoing
# connections: while a broker restarts, no client can be given the broker's own port, let alone
# connect to itself there.
CANDIDATES = range(20_000, 32_000)


def free_ports(count: int) -> tuple[int, ...]:
    """``count`` different ports on 127.0.0.1 that can be bound at this moment.

    Nothing reserves them: bind soon.

    Raises:
        SetupError: There are not that many.
    """
    found: list[int] = []
    for port in secrets.SystemRandom().sample(CANDIDATES, len(CANDIDATES)):
        if len(found) == count:
            break
        if _can_be_bound(port):
            found.append(port)
    if len(found) < count:
        raise SetupError(
            f"Only {len(found)} of the {count} ports needed are free between {CANDIDATES.start} "
            f"and {CANDIDATES.stop - 1} on 127.0.0.1; stop what listens there."
        )
    return tuple(found)


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
