"""Hostile senders in a process of their own: each line of its input is a command in JSON.

``python -m tests.receivers.zoo.hostile http|tls|tcp PORT [AUTHORITY]``
``python -m tests.receivers.zoo.hostile mqtt RECORD``, which is also the broker and the good sender
"""

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.receivers.zoo import http_kinds, line_kinds, mqtt_broker, sending
from tests.receivers.zoo.good_sender import PAUSE_S
from tests.receivers.zoo.record import Record

KINDS = {"http": http_kinds.KINDS, "tcp": line_kinds.LINES, "tls": line_kinds.TLS}

Run = Callable[[str, int, float], Awaitable[dict[str, object]]]


def names(protocol: str) -> list[str]:
    """The names of its kinds."""
    if protocol == "mqtt":
        return [kind.name for kind in mqtt_broker.MQTT]
    return [kind.name for kind in KINDS[protocol]]


async def _commands(run: Run) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        print(json.dumps(await run(command["kind"], command["copies"], command["s"])), flush=True)


async def senders(protocol: str, port: int, authority: str | None) -> None:
    trust = ssl.create_default_context(cafile=authority) if authority else None
    kinds = {kind.name: kind for kind in KINDS[protocol]}

    async def run(name: str, copies: int, duration_s: float) -> dict[str, object]:
        target = sending.Target(port, trust)
        visits = await sending.run(kinds[name], copies, duration_s, target)
        return {"visits": visits, "acknowledged": target.acknowledged}

    await _commands(run)


async def broker(path: Path) -> None:
    record = Record(path)
    it = mqtt_broker.Broker(record)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    kinds = {kind.name: kind for kind in mqtt_broker.MQTT}
    is_over = asyncio.Event()

    async def good() -> None:
        while not is_over.is_set():
            await it.deliver_good()
            await asyncio.sleep(PAUSE_S)

    async def run(name: str, copies: int, duration_s: float) -> dict[str, object]:
        return {"visits": await mqtt_broker.run(it, kinds[name], copies, duration_s)}

    delivering = asyncio.create_task(good())
    await _commands(run)
    is_over.set()
    await delivering
    server.close()


if __name__ == "__main__":
    if sys.argv[1] == "mqtt":
        asyncio.run(broker(Path(sys.argv[2])))
    else:
        asyncio.run(senders(sys.argv[1], int(sys.argv[2]), sys.argv[3] if sys.argv[3:] else None))
