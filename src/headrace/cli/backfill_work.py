"""What is done with the batches of a gate by hand: a handler, or a flow's stage."""

from typing import TYPE_CHECKING, Protocol

from headrace.cli.handlers import load_handler
from headrace.errors import OptionError
from headrace.ledger import normalize_url, redact_url

if TYPE_CHECKING:
    from headrace.execution.batch import Handler
    from headrace.flow.declaration import Declaration
    from headrace.flow.stage import Stage


class Work(Protocol):
    """What is done with batches."""

    def options(self, gate: str) -> dict[str, str]:
        """With which the gate's batches are read again, as far as they are known."""

    def handler(self, gate: str) -> "Handler":
        """What each of the gate's batches is given to."""


def work_of(handler: str | None, transform: str | None, flow: str | None, ledger: str) -> Work:
    """What ``--handler`` and ``--transform``, or ``--flow``, name.

    Raises:
        OptionError: Not one of both is named, or it cannot be used.
    """
    if flow is None:
        if handler is None:
            raise OptionError(
                "Neither --handler nor --flow is given; name the function that is called with each"
                " batch as --handler module:function, or the flow whose stage it is as --flow"
                " module:flow."
            )
        return _ByHandler(load_handler(handler, transform))
    if handler is not None or transform is not None:
        other = "--handler" if handler is not None else "--transform"
        raise OptionError(
            f"--flow is {flow!r}, and {other} is given too; leave that out, for the stage has its"
            " own."
        )
    from headrace.cli.flows import load_flow  # noqa: PLC0415  (a handler does without)

    named = load_flow(flow)
    named.check()
    if normalize_url(ledger) != named.ledger:
        raise OptionError(
            f"Flow {named.name!r} keeps its books in {redact_url(named.ledger)}, and --ledger is"
            f" {redact_url(ledger)}; give the flow's."
        )
    return _ByFlow(named.declared)


class _ByHandler:
    def __init__(self, handle: "Handler") -> None:
        self._handle = handle

    def options(self, _gate: str) -> dict[str, str]:
        return {}

    def handler(self, _gate: str) -> "Handler":
        return self._handle


class _ByFlow:
    def __init__(self, flow: "Declaration") -> None:
        self._flow = flow

    def options(self, gate: str) -> dict[str, str]:
        from headrace.flow.handling import options_of  # noqa: PLC0415  (it brings Spark)

        return options_of(self._flow, self._stage(gate))

    def handler(self, gate: str) -> "Handler":
        from headrace.execution.gate_state import shared_ledger  # noqa: PLC0415
        from headrace.flow.handling import handler_of  # noqa: PLC0415  (it brings Spark)

        stage = self._stage(gate)
        handle = handler_of(self._flow, stage, shared_ledger(self._flow.ledger))
        derive = stage.derive
        return handle if derive is None else lambda df, batch: handle(derive(df), batch)

    def _stage(self, gate: str) -> "Stage":
        for stage in self._flow.graph.stages.values():
            if self._flow.gate(stage.name) == gate:
                return stage
        gates = ", ".join(repr(self._flow.gate(name)) for name in self._flow.graph.stages)
        raise OptionError(
            f"The batches are of the gate {gate!r}, which is no stage of flow {self._flow.name!r};"
            f" its stages have the gates {gates}."
        )
