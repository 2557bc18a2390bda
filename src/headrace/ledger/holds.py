"""How the stages after it hold a gate, which its planner is to obey.

Times are the database's own, so that planner and driver need no clock in common.
"""

from typing import Final

from sqlalchemy import Connection, bindparam, case, select, update

from headrace.control.pressure import RateLimit
from headrace.ledger.base import Base
from headrace.ledger.now import NowMs
from headrace.ledger.records import Admission
from headrace.ledger.tables import gate

_of_gate = gate.c.name == bindparam("of")

_ADMISSION: Final = select(
    gate.c.rate_per_s,
    case((gate.c.held_until_ms > NowMs(), gate.c.held_per_s)).label("held_per_s"),
    gate.c.held_by,
    gate.c.held_level,
    gate.c.held_origin_per_s,
).where(_of_gate)
_HOLD: Final = (
    update(gate)
    .where(_of_gate)
    .values(
        held_per_s=bindparam("per_s"),
        held_by=bindparam("by"),
        held_level=bindparam("level"),
        held_origin_per_s=bindparam("origin_per_s"),
        held_until_ms=NowMs() + bindparam("lease_ms"),
        pressures=bindparam("heard"),
    )
)
_HEARD: Final = select(gate.c.pressures).where(_of_gate)


class Holds(Base):
    """What a gate may admit at most because of what comes after it."""

    def admission(self, gate_name: str) -> Admission:
        """The gate's current rate, and what holds it back at this moment, at one look."""

        def admission(connection: Connection) -> Admission:
            row = connection.execute(_ADMISSION, {"of": gate_name}).one_or_none()
            if row is None:
                return Admission(None, None)
            if row.held_per_s is None:
                return Admission(row.rate_per_s, None)
            held = RateLimit(row.held_per_s, row.held_by, row.held_level, row.held_origin_per_s)
            return Admission(row.rate_per_s, held)

        return self._database.read(admission)

    def hold(self, gate_name: str, bound: RateLimit | None, lease_ms: int, pressures: str) -> None:
        """Hold a gate back for the time of a lease, or let it go.

        A gate that is not declared yet is not held: the next call may find it.

        Args:
            gate_name: The gate.
            bound: What it may admit at most; None for no bound.
            lease_ms: How long that holds from now; what is written later replaces it.
            pressures: What `pressures` is to answer.
        """
        held = {
            "of": gate_name,
            "per_s": None if bound is None else bound.rate_per_s,
            "by": None if bound is None else bound.throttled_by,
            "level": None if bound is None else bound.level,
            "origin_per_s": None if bound is None else bound.origin_per_s,
            "lease_ms": lease_ms,
            "heard": pressures,
        }
        self._database.change(_HOLD, held)

    def pressures(self, gate_name: str) -> str | None:
        """The text that `hold` was given last; None if there was none."""

        def pressures(connection: Connection) -> str | None:
            return connection.scalar(_HEARD, {"of": gate_name})

        return self._database.read(pressures)
