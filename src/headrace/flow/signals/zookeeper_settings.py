"""Connection settings of a flow's ZooKeeper, checked when they are set."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.core.options import require_number
from headrace.errors import OptionError

DEFAULT_CHROOT: Final = "/headrace"
"""The node under which everything is kept, where `hosts` names none."""

_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")
_CHROOT: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Settings of the ZooKeeper for a flow's signals.

    Attributes:
        hosts: The servers, as ``host:port,host:port``, and after them the node under which
            everything is kept, such as ``/prod/headrace``. Default: ``/headrace``. It is made where
            it is missing.
        user: The user to sign in as (digest), the same for all stages of a flow. Default: None,
            which leaves everything open to everybody.
        password: That user's. Whoever has it can read, write and delete all nodes of its flows, and
            nobody else can.
        tls: Whether the connection is encrypted, and the certificate of the server checked, which
            must be for the name or address in `hosts`. It is for the servers' secure port.
        ca_file: The certificates of authorities to trust (PEM), with TLS. Default: the system's.
        certificate_file: This process's own certificate (PEM), for servers that ask for one.
        key_file: The key of that certificate, where it is in another file.
        session_timeout_s: After how long without a message the servers take a stage for gone, and
            delete what it publishes; above 0. Default: 10. The servers have bounds of their own.
            Too long, and the signals of a dead stage stay longer; too short, and a pause of the
            machine ends the session, which costs a second or two. Best no longer than the lease.
        unreachable: What to do if no server answers at first: ``wait`` (the default) logs that and
            takes part as soon as one answers; ``refuse`` raises an error.
        start_timeout_s: How long to wait for an answer at first; above 0. Default: 10.

    Raises:
        OptionError: A value is out of its range, or contradicts another.
    """

    hosts: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    session_timeout_s: float = 10.0
    unreachable: Literal["wait", "refuse"] = "wait"
    start_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        self._check_hosts()
        if (self.user is None) != (self.password is None):
            raise OptionError(
                f"The user of ZooKeeper is {self.user!r}, and a password was"
                f" {'not ' if self.password is None else ''}given; give both or neither."
            )
        if self.user is not None and (not self.user or ":" in self.user):
            raise OptionError(
                f"The user of ZooKeeper is {self.user!r}; it must have 1 or more characters, none"
                " of them ':'."
            )
        if self.key_file is not None and self.certificate_file is None:
            raise OptionError("A key is given without its certificate; name that file too.")
        if not self.tls and (self.ca_file is not None or self.certificate_file is not None):
            raise OptionError(
                f"Certificates are given, and tls is {self.tls!r} for ZooKeeper at {self.servers};"
                " set it to True, and name the servers' secure port."
            )
        if self.unreachable not in ("wait", "refuse"):
            raise OptionError(
                f"unreachable is {self.unreachable!r}; it must be 'wait' or 'refuse'."
            )
        for name in ("session_timeout_s", "start_timeout_s"):
            require_number(name, getattr(self, name), "s", above=True)

    @property
    def servers(self) -> str:
        """The servers alone."""
        return self.hosts.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The node under which everything is kept."""
        _, slash, path = self.hosts.partition("/")
        return slash + path or DEFAULT_CHROOT

    def _check_hosts(self) -> None:
        found = [_HOST.fullmatch(host) for host in self.servers.split(",")]
        ports = [int(host[1]) for host in found if host and host[1]]
        is_good = all(found) and all(0 < port < 2**16 for port in ports)
        if not is_good or not _CHROOT.fullmatch(self.chroot) or _has_dots(self.chroot):
            raise OptionError(
                f"The hosts of ZooKeeper are {self.hosts!r}; they must be such as"
                " 'zk1:2181,zk2:2181', or 'zk1:2181,zk2:2181/prod/headrace'."
            )


def _has_dots(path: str) -> bool:
    return any(name in (".", "..") for name in path.split("/"))
