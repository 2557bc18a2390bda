import socket

import pytest

from headrace.errors import SetupError
from headrace.local import ports


def test_the_ports_differ_and_can_all_be_bound() -> None:
    found = ports.free_ports(5)
    assert len(set(found)) == 5
    for port in found:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_that_somebody_listens_on_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = ports.free_ports(2)
    monkeypatch.setattr(ports, "CANDIDATES", (taken, free))
    with socket.create_server(("127.0.0.1", taken)):
        assert ports.free_ports(1) == (free,)


def test_too_few_free_ports_are_an_error_that_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1)
    monkeypatch.setattr(ports, "CANDIDATES", range(port, port + 1))
    with pytest.raises(SetupError, match=f"Only 1 of the 2 ports .* between {port} and {port}"):
        ports.free_ports(2)
