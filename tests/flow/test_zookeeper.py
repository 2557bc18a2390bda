"""The session with ZooKeeper: how it begins, what it refuses, what it never shows."""

import logging
import sys
import time
import traceback
from typing import Any

import pytest
from tests.flow.samples import a_signal
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

import headrace.flow
from headrace.errors import OptionError, SetupError, SignalError
from headrace.flow import ZookeeperSession, ZookeeperSettings
from headrace.flow.signal_codec import UnreachableError
from headrace.operate.local import Java
from headrace.operate.local.servers import free_ports

SECRET = "pa55:word/@"  # noqa: S105


def settings(hosts: str, **changes: Any) -> ZookeeperSettings:
    return ZookeeperSettings(
        **{
            "hosts": hosts,
            "user": "flows",
            "password": SECRET,
            "session_timeout_s": 1.0,
            "start_timeout_s": 1.0,
            **changes,
        }
    )


def test_an_unreachable_zookeeper_is_refused_where_that_is_set() -> None:
    (port,) = free_ports(1)
    with pytest.raises(SignalError) as raised:
        ZookeeperSession(settings(f"127.0.0.1:{port}", unreachable="refuse"))
    assert str(raised.value) == (
        f"ZooKeeper at 127.0.0.1:{port} did not respond within 1 s; check that it runs and can be"
        " reached, or set unreachable to 'wait'."
    )
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.nightly
def test_an_unreachable_zookeeper_is_told_and_waited_for_where_that_is_set(
    java: Java, flow: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = ZookeeperServer(java)
    try:
        brief = {"session_timeout_s": BRIEF_SESSION_S}
        with ZookeeperWorld(flow, server.hosts, unreachable="wait", **brief) as world:
            began_s = time.monotonic()
            a, b = world.join("a", ["b"]), world.join("b")
            assert time.monotonic() - began_s < 30, "it does not wait at the beginning"
            assert not a.is_connected
            b.send(a_signal(flow=flow))
            assert (a.receive(0.1), a.states()) == ([], {})
            wait_until(lambda: caplog.text.count("is unreachable: ") == 2)
            server.start()
            assert a.receive(30) == [a_signal(flow=flow)]
    finally:
        server.close()


class Stumbling:
    """An answer that kazoo could not read."""

    def get(self, timeout: float) -> None:
        raise RuntimeError("xids do not match")


def test_an_answer_that_nobody_understands_is_none(zookeeper: ZookeeperServer) -> None:
    with (
        ZookeeperSession(settings(zookeeper.hosts)) as session,
        pytest.raises(UnreachableError, match="because of an unexpected error: RuntimeError"),
    ):
        session.result("/headrace", Stumbling())


@pytest.mark.parametrize("hosts", ["no-such-host.invalid:2181", "127.0.0.1:1"])
def test_signals_that_never_had_a_zookeeper_close_at_once(hosts: str, flow: str) -> None:
    with ZookeeperWorld(flow, hosts) as world:
        b = world.join("b")
        b.send(a_signal(flow=flow))
    assert not b.is_connected


def test_the_password_is_shown_nowhere(
    zookeeper: ZookeeperServer, flow: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    for name in ("headrace", "headrace.flow", "headrace.flow.kazoo", "kazoo"):
        caplog.set_level(1, name)
    with ZookeeperWorld(flow, zookeeper.hosts + "/secret", user="flows", password=SECRET) as world:
        b = world.join("b")
        wait_until(lambda: b.is_connected)
        world.expire("b")
        b.send(a_signal(flow=flow))
        wait_until(lambda: b.is_delivered)
        shown = f"{world.settings!r} {world.sessions['b']!r} {b!r} {world.sessions['b'].id}"
    assert SECRET not in shown
    assert SECRET not in caplog.text
    assert logging.getLogger("headrace.flow.kazoo").level == 1, "kazoo's own lines were asked for"


def test_the_hosts_may_name_where_everything_is_kept() -> None:
    assert settings("zk1:2181,zk2,[::1]:2181").chroot == "/headrace"
    named = settings("zk1:2181,zk2/prod/flows")
    assert (named.servers, named.chroot) == ("zk1:2181,zk2", "/prod/flows")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hosts": ""}, "The hosts of ZooKeeper are ''; write them like"),
        ({"hosts": "zk1:0"}, "The hosts of ZooKeeper are 'zk1:0'"),
        ({"hosts": "zk1:65536"}, "The hosts of ZooKeeper are 'zk1:65536'"),
        ({"hosts": "zk1:2181,"}, "The hosts"),
        ({"hosts": "zk1 zk2"}, "The hosts"),
        ({"hosts": "http://zk1"}, "The hosts"),
        ({"hosts": "zk1/"}, "The hosts"),
        ({"hosts": "zk1/a/../b"}, "The hosts"),
        ({"hosts": "zk1/a//b"}, "The hosts"),
        ({"user": "a:b"}, "The user of ZooKeeper is 'a:b'; it must have"),
        ({"user": ""}, "The user of ZooKeeper is ''"),
        ({"user": None}, "The user of ZooKeeper is None, and a password was given"),
        ({"password": None}, "The user of ZooKeeper is 'flows', and a password was not given"),
        ({"tls": True, "key_file": "k"}, "key_file is set without certificate_file"),
        ({"ca_file": "c"}, "Certificates are given, but tls is False for ZooKeeper at zk1; set"),
        ({"certificate_file": "c"}, "Certificates are given, but tls is False"),
        ({"unreachable": "hope"}, "unreachable is 'hope'; it must be 'wait' or 'refuse'."),
        ({"session_timeout_s": 0}, "session_timeout_s is 0 s; it must be a finite number above 0."),
        ({"start_timeout_s": float("nan")}, "start_timeout_s is nan s"),
    ],
)
def test_a_wrong_setting_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as raised:
        settings(**{"hosts": "zk1", **changes})
    assert str(raised.value).startswith(sentence)
    assert SECRET not in str(raised.value)


def test_without_its_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "headrace.flow.zookeeper_session")
    monkeypatch.delitem(sys.modules, "headrace.flow.zookeeper_transport")
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    for name in ("ZookeeperSession", "zookeeper_signals"):
        with pytest.raises(SetupError, match=r"pip install 'headrace\[zookeeper\]'\.$"):
            getattr(headrace.flow, name)()


def test_everything_that_is_public_is_there_and_in_order() -> None:
    assert headrace.flow.__all__ == sorted(headrace.flow.__all__)
    for name in headrace.flow.__all__:
        assert getattr(headrace.flow, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'signal'"):
        getattr(headrace.flow, "signal")  # noqa: B009
