"""The registry of receivers: what is listed there is all that others know of a receiver."""

import ast
import re
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.journal.receivers import HttpReceiver, HttpSettings, TcpReceiver, TcpSettings
from headrace.journal.receivers.hosting import Listener
from headrace.journal.receivers.option import option_of
from headrace.journal.receivers.registry import RECEIVERS, make_receiver
from headrace.journal.receivers.settings_file import KEYS, described_fields


def test_nothing_names_the_class_of_a_receiver_but_its_own_module_and_packages() -> None:
    root = Path(headrace.__file__).parent
    classes = {path.rpartition(".")[2]: path.rpartition(".")[0] for path, _ in RECEIVERS.values()}
    for file in root.rglob("*.py"):
        module = ".".join(["headrace", *file.relative_to(root).with_suffix("").parts])
        used = {node.id for node in ast.walk(ast.parse(file.read_text())) if type(node) is ast.Name}
        assert {classes[name] for name in used & classes.keys()} <= {module}, file


@pytest.mark.parametrize("name", RECEIVERS)
def test_every_setting_of_a_receiver_is_an_option_or_a_key(name: str) -> None:
    _, settings = RECEIVERS[name]
    assert settings.command_help.strip()
    keys = {
        each.name
        for each, _, nested in described_fields(settings)
        if nested is None and option_of(each).name is None
    }
    assert set(KEYS[name]) == keys
    assert keys <= {each.name for each in fields(settings)}


@pytest.mark.parametrize(
    ("name", "settings", "kind", "address"),
    [
        ("http", HttpSettings(port=0), HttpReceiver, "http://127.0.0.1:{}/records"),
        ("tcp", TcpSettings(port=0), TcpReceiver, "tcp://127.0.0.1:{}"),
    ],
)
def test_a_port_that_was_opened_is_closed_again_if_nothing_was_received(
    name: str, settings: object, kind: type[Any], address: str
) -> None:
    receiver = make_receiver(name, settings)
    assert type(receiver) is kind
    assert isinstance(receiver, Listener)
    receiver.listen()
    (port,) = map(int, re.findall(r":(\d+)", receiver.address()))
    assert receiver.address() == address.format(port)
    for _ in range(2):
        receiver.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
