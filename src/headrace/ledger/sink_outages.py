"""The outage of each gate's sink: while its batch waits, and what an operator asks of it."""

from typing import Final

from sqlalchemy import bindparam, select, update

from headrace.control.sink_outage import SinkOutage
from headrace.ledger.error_report import storable
from headrace.ledger.store import Store
from headrace.ledger.tables import NowMs, gate

_of_gate = gate.c.name == bindparam("of")

_KEEP: Final = (
    update(gate).where(_of_gate).values(sink_outage=bindparam("text"), sink_retry_ms=None)
)

_END: Final = (
    update(gate)
    .where(_of_gate, gate.c.sink_outage.is_not(None))
    .values(sink_outage=None, sink_retry_ms=None, rate_per_s=gate.c.rate_per_s / 2)
)

RUN_AT_ONCE: Final = (
    update(gate).where(_of_gate, gate.c.sink_outage.is_not(None)).values(sink_retry_ms=NowMs())
)

_OUTAGE: Final = select(gate.c.sink_outage).where(_of_gate)
_IS_ASKED: Final = select(gate.c.sink_retry_ms.is_not(None)).where(_of_gate)


class SinkOutageStore(Store):
    """What is known of the sinks that gates wait for, one outage a gate at most."""

    def get(self, gate_name: str) -> SinkOutage | None:
        """The outage of a gate's sink; None where it is there, as far as is known."""
        return SinkOutage.from_text(self._database.scalar(_OUTAGE, of=gate_name))

    def keep(self, gate_name: str, outage: SinkOutage) -> None:
        """Write one more failed run down; whoever has asked for a run has had it."""
        text = storable(outage.to_text())
        self._database.change(_KEEP, {"of": gate_name, "text": text})

    def end(self, gate_name: str) -> None:
        """Say that nothing waits any more: the rate goes on at half of what it was."""
        self._database.change(_END, {"of": gate_name})

    def is_asked(self, gate_name: str) -> bool:
        """Whether somebody wants the batch that waits to be run at once."""
        return bool(self._database.scalar(_IS_ASKED, of=gate_name))
