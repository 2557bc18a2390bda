"""Commands that act on gates: ``limit``, ``drain``, ``stop``, ``retry``, ``adopt``, ``accept``.

Commands without arguments of their own, such as ``pause``, come from their declarations in
`gate_actions`.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from headrace.core.options import age_ms
from headrace.errors import HeadraceError, OptionError
from headrace.gate import MOST_AT_ONCE, Ledger, OperatorLimits
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.cli.shared_options import load_flow
from headrace.operate.status import words
from headrace.operate.status.actions import (
    NO_CEILING,
    DrainState,
    FlowDrain,
    WantedLimit,
)
from headrace.operate.status.gate_actions import GATE_ACTIONS, GateAction
from headrace.operate.status.sources import WAIT_FOR_SOURCES_S, Sources
from headrace.operate.status.states import query_behind

LOOK_S: Final = 0.2
"""Interval between two reads of the progress of a drain or a stop (s)."""


@dataclass(frozen=True, slots=True)
class Acting:
    """Common arguments of the commands that act on gates: gates, operator, reason and ledger."""

    gate: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GATE",
            help="Gates to act on; a ledger's only gate needs no name.",
            autocompletion=opt.complete_gates,
        ),
    ] = None
    flow: opt.FlowName = None
    why: Annotated[
        str, typer.Option(metavar="REASON", help="The reason, which is shown with the gate.")
    ] = ""
    by: opt.Author = None
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER
    as_json: opt.AsJson = False

    @property
    def who(self) -> str:
        """Name of the operator: ``--by``, or else the user of this process."""
        return opt.acting_user(self.by)

    def chosen(self) -> tuple[dict[str, tuple[str, ...]], str]:
        """Return the chosen gates, each with its direct upstream gates, and the URL of the ledger.

        The gates of a flow are in the flow's order. Other gates have no upstream gates. Raise
        OptionError if a gate is not in the ledger, so that a command changes either all gates or
        none.
        """
        upstream: dict[str, tuple[str, ...]] = dict.fromkeys(self.gate or (), ())
        url = self.ledger
        if upstream and self.flow is not None:
            raise OptionError("Gates and --flow are both named; name gates or a --flow.")
        if self.flow is not None:
            flow = load_flow(self.flow)
            upstream = {
                flow.gate(name): tuple(map(flow.gate, flow.graph.upstream(name)))
                for layer in flow.graph.layers()
                for name in layer
            }
            url = opt.ledger_of_flow(flow, url)
        # Only an existing ledger can be changed: none is created here.
        with Ledger.open(url, create=False) as reader:
            for gate_name in upstream:
                opt.gates_of(reader, gate_name, url)
            return upstream or {opt.the_gate(reader, None, url).name: ()}, url


_acting: Final = opt.sharing(Acting)


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of an action of `GATE_ACTIONS`, such as ``pause``, by its name."""
    action = GATE_ACTIONS.get(name)
    if action is None or action.command is None:
        raise AttributeError(name)
    declared = action.command

    def command(acting: Acting) -> None:
        _act(acting, action, all_stages=declared.all_stages)

    command.__doc__ = declared.help
    return _acting(command)


@_acting
def limit(
    acting: Acting,
    *,
    rate: Annotated[
        str,
        typer.Argument(
            metavar="RATE",
            help="Records/s over all partitions; or off, to end the limit; or no-ceiling.",
        ),
    ],
    lasts: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="End the limit automatically after this time: 2h, 30min."
        ),
    ] = None,
) -> None:
    """Cap the rate of gates from their next batch on; other limits stay in force.

    Of a flow, the command limits the first stages.
    With no-ceiling instead of a rate, the gate forgets the ceiling that it learnt from batches that
    failed because of their size. Use it when the handler can take larger batches again.
    """
    if rate == NO_CEILING:
        if lasts is not None:
            raise OptionError(
                f"--for is the duration of a limit, and {rate!r} sets no limit; leave --for out."
            )
        _act(acting, GATE_ACTIONS["lift-ceiling"])
    else:
        _act(acting, WantedLimit.parse(rate, lasts, "--for").action)


@_acting
def drain(
    acting: Acting,
    *,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest time to wait: 0s, 5min.")
    ] = "10min",
) -> None:
    """Stop admitting records, finish the admitted batches, and print when the query can be stopped.

    A flow is drained from its first stages to its last: a stage stops when no more records can
    reach it.
    After a restart, a drained gate admits no records until it is resumed.
    Exit status 3: the time is over, or somebody has resumed a gate, before the drain was done. The
    same command continues the drain.
    """
    timeout_s = age_ms("--timeout", timeout) / 1000
    (upstream, url), as_json = acting.chosen(), acting.as_json
    with Ledger.join(url) as opened:
        states = _drain(opened, acting, upstream, time.monotonic() + timeout_s)
        if as_json:
            for state in states:
                out.print_json({**asdict(state), "can_stop": state.can_stop})
    if not all(state.can_stop for state in states):
        raise typer.Exit(ExitStatus.OPEN)


@_acting
def stop(
    acting: Acting,
    *,
    after_drain: Annotated[
        bool,
        typer.Option(
            "--after-drain", help="Drain the gates first, so that the admitted batches finish."
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest time to wait: 0s, 5min.")
    ] = "10min",
) -> None:
    """Stop the queries of gates after their current batches, whatever process runs them.

    A query plans no further batch, and its own program stops it. This works for queries that run
    through Gate.write, over Spark Connect too. The next start of a query continues where the query
    stopped.
    Exit status 1: a gate has no running query.
    Exit status 3: the time is over, and a query still runs; it ends after its current batch.
    """
    deadline_s = time.monotonic() + age_ms("--timeout", timeout) / 1000
    upstream, url = acting.chosen()
    with Ledger.join(url) as opened:
        _refuse_without_a_query(opened, upstream)
        if after_drain:
            states = _drain(opened, acting, upstream, deadline_s)
            if not all(state.can_stop for state in states):
                raise typer.Exit(ExitStatus.OPEN)
        for gate_name in upstream:
            opened.operator_limits.stop(gate_name, acting.who, acting.why)
        running = list(upstream)
        while running and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
            for gate_name in [name for name in running if query_behind(opened, name)[0] is None]:
                running.remove(gate_name)
                _say_stopped(gate_name, runs=False, as_json=acting.as_json)
        for gate_name in running:
            _say_stopped(gate_name, runs=True, as_json=acting.as_json)
    if running:
        raise typer.Exit(ExitStatus.OPEN)


def adopt(
    gate: Annotated[
        str,
        typer.Argument(metavar="GATE", help="Name of the gate.", autocompletion=opt.complete_gates),
    ],
    which: Annotated[
        str,
        typer.Argument(metavar="ID", help="The ID in the error with which the query was refused."),
    ],
    *,
    why: Annotated[
        str, typer.Option(metavar="REASON", help="The reason, which is kept with the gate.")
    ],
    by: opt.Author = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Let a gate's query start with an older checkpoint, or with a checkpoint of another ledger.

    With an older checkpoint, the query continues at the gate's position in this ledger.
    With a checkpoint of another ledger, the offsets that the checkpoint has committed become one
    dead batch, because this ledger does not know which of these offsets failed.
    """
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        opt.gates_of(reader, gate, ledger)
        record, checkpoints = reader.gates.get(gate), reader.history.checkpoints(gate)
        own = {row.checkpoint_id for row in checkpoints}
        is_other = _GATE_ID.fullmatch(which) and record is not None and record.gate_id != which
        if which not in own and not is_other:
            raise OptionError(
                f"{which!r} is neither a checkpoint of {gate!r} nor an id of another ledger"
                " (16 hexadecimal digits); give the ID from the error that refused the gate's"
                " query."
            )
    with Ledger.join(ledger) as opened:
        opened.operator_limits.adopt(gate, which, opt.acting_user(by), why)
    typer.echo(words.printable(f"{gate}: the next start of its query continues with {which}."))


_GATE_ID: Final = re.compile("[0-9a-f]{16}")


def _refuse_without_a_query(ledger: Ledger, gates: Iterable[str]) -> None:
    missing = [name for name in gates if query_behind(ledger, name)[0] is None]
    if missing:
        raise HeadraceError(
            f"No query runs behind {', '.join(map(repr, missing))}, so there is nothing to stop;"
            " `headrace status` lists the gates with their states."
        )


def _drain(
    ledger: Ledger, acting: Acting, upstream: Mapping[str, tuple[str, ...]], deadline_s: float
) -> list[DrainState]:
    draining = FlowDrain(
        ledger,
        upstream,
        partial(_waiting, ledger),
        lambda name: ledger.operator_limits.drain(name, acting.who, acting.why),
    )
    return _wait(draining, deadline_s, quiet=acting.as_json)


def _say_stopped(gate: str, *, runs: bool, as_json: bool) -> None:
    if as_json:
        out.print_json({"gate": gate, "stopped": not runs})
        return
    state = "still runs, and ends when its batch is done" if runs else "has ended"
    typer.echo(words.printable(f"{gate}: its query {state}."))


def _wait(draining: FlowDrain, deadline_s: float, *, quiet: bool) -> list[DrainState]:
    printed: set[str] = set()
    while True:
        states = list(draining.step())
        for state in states:
            if state.sentence not in printed and not quiet:
                printed.add(state.sentence)
                typer.echo(words.printable(state.sentence))
        is_over = all(state.can_stop for state in states) or any(s.resumed_by for s in states)
        if is_over or time.monotonic() >= deadline_s:
            return states
        time.sleep(LOOK_S)


def _waiting(ledger: Ledger, name: str) -> int | None:
    sources = Sources(with_times=False)
    sources.ask(ledger, [name], WAIT_FOR_SOURCES_S)
    answer = sources.answers().get(name)
    return None if answer is None else answer.lag


def _act(acting: Acting, action: GateAction, *, all_stages: bool = False) -> None:
    upstream, url = acting.chosen()
    with Ledger.join(url) as opened:
        # The first stages of a flow are enough: pausing them pauses all.
        for name in (gate for gate, before in upstream.items() if all_stages or not before):
            operator_limits, sentence = action.act(opened, name, acting.who, acting.why)
            if acting.as_json:
                out.print_json(operator_limit_values(operator_limits))
            else:
                typer.echo(words.printable(sentence))


def operator_limit_values(operator_limits: OperatorLimits) -> dict[str, Any]:
    """Return a gate's operator limits for JSON; times are ms since the epoch."""
    return {
        **asdict(operator_limits),
        "seen": operator_limits.seen,
        "described": operator_limits.describe(),
    }


@_acting
def retry(acting: Acting) -> None:
    """Run waiting batches of gates at once: batches that wait for their sink, and failed batches.

    A batch that waits for its sink is run within two seconds.
    Failed batches no longer wait for the next scheduled backfill: the gate's own process runs them
    next, between two batches of its stream.
    """
    gates, url = acting.chosen()
    why = acting.why or "to try now"
    with Ledger.join(url) as opened:
        waiting = {
            item: (
                opened.sink_outages.get(item) is not None,
                [batch.batch_key for batch in opened.batches.failed(item, MOST_AT_ONCE)],
            )
            for item in gates
        }
        retried = {
            item: {
                "sink": opened.repairs.retry_sink(item, acting.who, why) if waits else 0,
                "batches": opened.repairs.retry(item, keys, acting.who, why) if keys else 0,
            }
            for item, (waits, keys) in waiting.items()
        }
    if not any(any(item.values()) for item in retried.values()):
        names = " and ".join(map(repr, gates))
        raise OptionError(
            f"No batch of gate {names} waits for its sink or a backfill; see `headrace status`."
        )
    for gate, item in retried.items():
        if acting.as_json:
            out.print_json({"gate": gate, **item, "sink": bool(item["sink"])})
        else:
            typer.echo(words.printable(_retried_sentence(gate, item)))


def _retried_sentence(gate: str, done: Mapping[str, int]) -> str:
    sentences = []
    if done["sink"]:
        sentences.append("the batch that waits for its sink is run now")
    if number := done["batches"]:
        does = "does" if number == 1 else "do"
        failed = words.plural(number, "failed batch")
        sentences.append(f"{failed} {does} not wait for the next backfill any more")
    return f"{gate}: {', and '.join(sentences) or 'nothing waits to be run again'}."


def accept(
    *,
    gate: opt.TheGate = None,
    records: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of lost and skipped records, as headrace verify shows it.",
        ),
    ],
    why: Annotated[
        str,
        typer.Option(
            metavar="REASON",
            help="The reason why the records need not be processed, which is kept.",
        ),
    ],
    by: opt.Author = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Accept records that a gate has lost, or skipped between two checkpoints. This is final.

    --records is the present number of lost and skipped records. If the ledger has another number,
    nothing is changed.
    headrace verify then counts the records as accepted, and headrace status no longer lists them as
    a problem.
    """
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        gate = opt.the_gate(reader, gate, ledger).name
    with Ledger.join(ledger) as opened:
        missed = opened.proofs.missed(gate)
        opened.repairs.accept(gate, missed, records, opt.acting_user(by), why)
    lost, skipped = words.count(missed.lost), words.count(missed.skipped)
    typer.echo(words.printable(f"{gate}: {lost} lost and {skipped} skipped records are accepted."))
