"""The planner of a gated stream over a log in memory."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.planner import StreamPlanner
from headrace.gate.source.read_bounds import Edge
from headrace.gate.source.source_options import parse_source_options
from headrace.testing import MemoryLog, temporary_ledger


def test_a_gate_is_its_query_s_before_there_is_a_batch() -> None:
    log = MemoryLog()
    with temporary_ledger(log.clock) as ledger:
        options = parse_source_options(
            {"headrace.gate": "orders", "headrace.ledger": ledger.url},
            streaming=True,
            stream_begins=Edge.EARLIEST,
        )
        open_ledger = partial(Ledger.open, clock=log.clock, database_clock=log.clock)
        with closing(StreamPlanner(log, options, log.clock, open_ledger=open_ledger)) as planner:
            planner.advance(planner.initial(), everything=False)
            assert ledger.gates.query("orders") is not None
            assert ledger.batches.newest("orders", 1) == ()


def test_a_checkpoint_of_another_gate_is_refused(tmp_path: Path) -> None:
    log = MemoryLog()
    raw = {"headrace.gate": "orders", "headrace.ledger": f"sqlite:///{tmp_path}/l.db"}
    options = parse_source_options(raw, streaming=True, stream_begins=Edge.EARLIEST)
    with closing(StreamPlanner(log, options, log.clock)) as planner:
        of_another = {**planner.initial(), "@gate": "payments"}
        with pytest.raises(OptionError, match="checkpoint belongs to the gate 'payments'"):
            planner.advance(of_another, everything=False)
