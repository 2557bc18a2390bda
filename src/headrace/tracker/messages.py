"""What a receiver's task and its tracker say to each other: lines of JSON, in turn.

The task reports twice a second, and is told after each report what to do. Nothing of it is ever
unpickled or evaluated, and no line is longer than 4096 bytes.
"""

import asyncio
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from headrace.errors import ReceiverError

MAX_LINE_BYTES: Final = 4096

REPORT_S: Final = 0.5
"""How often a task reports, and so how soon it learns that it is to stop."""

SILENCE_S: Final = 30.0
"""After so long without a word from the other side it counts as gone."""


class Order(StrEnum):
    """What a task is to do.

    ``WAIT``: another task runs its receiver. ``RECEIVE``: run it, or go on. ``STOP``: end cleanly.
    """

    WAIT = "wait"
    RECEIVE = "receive"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Report:
    """What a task says of itself.

    Attributes:
        token: What shows whose task it is.
        host: The name of the machine that it runs on.
        receiving: Whether its receiver has its lane, and receives.
        address: What senders connect to, where its receiver listens.
    """

    token: str = field(repr=False)
    host: str
    receiving: bool = False
    address: str | None = None

    def encode(self) -> bytes:
        """A line, with its end."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Report":
        """Read a line.

        Raises:
            ReceiverError: It is no report.
        """
        match _parsed(line):
            case {
                "token": str(token),
                "host": str(host),
                "receiving": bool(receiving),
                "address": str() | None as address,
            }:
                return cls(token, host, receiving, address)
        raise ReceiverError("What was sent is no report of a receiver's task.")


def encode_order(order: Order) -> bytes:
    """A line, with its end."""
    return json.dumps({"order": order}).encode() + b"\n"


def decode_order(line: bytes) -> Order:
    """Read a line.

    Raises:
        ReceiverError: It is no order.
    """
    match _parsed(line):
        case {"order": str(word)} if word in set(Order):
            return Order(word)
    raise ReceiverError("What was sent is no order of a tracker.")


async def read_line(reader: asyncio.StreamReader, timeout_s: float) -> bytes:
    """The next line, with its end.

    Args:
        reader: Made with ``limit=MAX_LINE_BYTES``.
        timeout_s: The longest wait for the whole of it.

    Raises:
        ReceiverError: None comes in this time, or it is too long, or the connection ends.
    """
    try:
        async with asyncio.timeout(timeout_s):
            line = await reader.readline()
    except TimeoutError as error:
        raise ReceiverError(f"Nothing was heard for {timeout_s:g} s.") from error
    except ValueError as error:  # asyncio's word for it
        raise ReceiverError(f"A line was longer than {MAX_LINE_BYTES} bytes.") from error
    except OSError as error:
        raise ReceiverError(f"The connection broke: {error}.") from error
    if not line.endswith(b"\n"):
        raise ReceiverError("The connection was closed.")
    return line


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
