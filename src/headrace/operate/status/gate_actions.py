"""Actions of operators on a gate. A new action is a new entry of `GATE_ACTIONS`.

An entry declares the command, its line in ``headrace --help``, and the form on the gate's page.
``headrace --help`` imports this module, so this module does not import the package `gate`, whose
import is slow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.gate import Ledger, OperatorAction, OperatorLimits
    from headrace.operate.status.snapshot import GateSnapshot


@dataclass(frozen=True, slots=True)
class Command:
    """Command line declaration of an action on a gate.

    Attributes:
        group: Title of the group in which ``headrace --help`` lists the command.
        summary: The command's line in ``headrace --help``.
        help: Help of the command itself, printed with ``--help``.
        example: Example of a command line, at the end of the help.
        all_stages: Whether the command acts on all stages of a flow. Default: False, it acts on the
            first stages only. If these are paused, no records reach the other stages.
    """

    group: str
    summary: str
    help: str
    example: str
    all_stages: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """Input field of an action's form. Every form also has a field for the reason.

    Attributes:
        name: Name of the field in the request.
        label: Label of the field on the page.
        size: Width of the field (characters).
        is_required: Whether the browser refuses an empty field.
        placeholder: Text that the page shows in the empty field.
    """

    name: str
    label: str
    size: int
    is_required: bool = False
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an action on the gate's page.

    Attributes:
        label: Label of the button that opens the form.
        text: Effect of the action, in a sentence.
        button: Label of the button that sends the form.
        possible: Returns whether the action would change anything now. If not, the page hides the
            form.
        inputs: Fields of the form, besides the reason.
    """

    label: str
    text: str
    button: str
    possible: "Callable[[OperatorLimits, GateSnapshot], bool]" = field(
        default=lambda _limits, _gate: True
    )
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class GateAction:
    """An action of an operator on a gate.

    Attributes:
        effect: Function of ledger, gate, author and reason that writes the action into the ledger
            and returns the operator limits then in force. None if `dashboard.action_forms`
            performs the action, because it needs fields of the form.
        done: Effect of the action, in words that follow the gate's name. Default: None, which
            describes the operator limits in force.
        also: Returns a further effect on the gate, in words that follow ``done``; empty if there is
            none.
        command: The command; None if it needs more arguments than gates and a reason.
        form: The form on the gate's page; None if the page has no form for the action.
    """

    effect: "Callable[[Ledger, str, str, str], OperatorLimits] | None" = None
    done: str | None = None
    also: "Callable[[Ledger, str], str]" = lambda _ledger, _gate: ""
    command: Command | None = None
    form: Form | None = None

    def act(self, ledger: "Ledger", gate: str, by: str, why: str) -> "tuple[OperatorLimits, str]":
        """Do the action. Return the operator limits after it, and a sentence about the change."""
        if self.effect is None:
            raise TypeError("this action needs the fields of its form")
        before = ledger.operator_limits.of(gate)
        limits = self.effect(ledger, gate, by, why)
        described = self.done or limits.describe() or "under no limit and not paused"
        if self.done is None and _numbers(limits) == _numbers(before):
            return limits, f"{gate}: {described}, as before."
        has_query = ledger.gates.query(gate) is not None
        when = "in force at its next plan" if has_query else "no query runs behind it now"
        replaced = _replaced(before.limit, limits.limit)
        return limits, f"{gate}: {described}{replaced}{self.also(ledger, gate)}; {when}."


def _numbers(limits: "OperatorLimits") -> list[int]:
    return [action.number for action in limits.in_force]


def _replaced(before: "OperatorAction | None", now: "OperatorAction | None") -> str:
    if before is None or now is None or now.number == before.number:
        return ""
    return (
        f"; it replaces the limit of {before.records_per_s or 0:g} records/s by {before.author},"
        " which does not come back"
    )


def _settled_by_a_restart(ledger: "Ledger", gate: str) -> str:
    number = sum(ledger.operator_limits.open_batches(gate).values())
    if not number:
        return ""
    from headrace.operate.status.words import plural  # noqa: PLC0415  (it brings the ledger)

    batches = plural(number, "open batch")
    waits, is_settled = ("waits", "is resolved") if number == 1 else ("wait", "are resolved")
    return f"; {batches} {waits} until then, and {is_settled} if its query reads them again"


RUNNING: Final = "Act on running queries"
REPAIR: Final = "Repair"

GATE_ACTIONS: Final[Mapping[str, GateAction]] = {
    "retry-sink": GateAction(
        form=Form(
            "Try now …",
            "Run the batch that waits for its sink at once.",
            "Try now",
            lambda _limits, gate: gate.waiting is not None,
        ),
    ),
    "pause": GateAction(
        lambda ledger, *of: ledger.operator_limits.pause(*of),
        command=Command(
            RUNNING,
            "Plan no batch until headrace resume.",
            """Pause gates: from their next plan on, they plan no batch until they are resumed.

            Running batches finish, and failed batches are run again as before.
            Receivers continue.
            Of a flow, the first stages are paused; the other stages process the records that are
            already in the flow.
            """,
            'headrace pause orders --why "sink migration"',
        ),
        form=Form(
            "Pause …",
            "Plan no batch until the gate is resumed.",
            "Pause",
            lambda limits, _gate: not limits.paused,
        ),
    ),
    "resume": GateAction(
        lambda ledger, *of: ledger.operator_limits.resume(*of),
        command=Command(
            RUNNING,
            "End a pause or a drain.",
            "End a pause or a drain of gates, or of all stages of a flow. Limits stay in force.",
            "headrace resume orders",
            all_stages=True,
        ),
        form=Form(
            "Resume …",
            "End a pause or a drain.",
            "Resume",
            lambda limits, _gate: limits.hold is not None,
        ),
    ),
    "drain": GateAction(
        lambda ledger, *of: ledger.operator_limits.drain(*of),
        form=Form(
            "Drain …",
            "Finish the admitted batches, so that the query can be stopped.",
            "Drain",
            lambda limits, _gate: not limits.draining,
        ),
    ),
    "stop": GateAction(
        lambda ledger, *of: ledger.operator_limits.stop(*of),
        "its query ends once its batch is done",
        form=Form(
            "Stop …",
            "Stop its query after the current batch; its next start continues from there.",
            "Stop the query",
            lambda limits, gate: gate.query is not None and limits.stop is None,
        ),
    ),
    "limit": GateAction(
        form=Form(
            "Limit …",
            "Cap the rate; the cap replaces a limit that is in force.",
            "Limit",
            inputs=(
                Input("records_per_s", "Records/s", 8, is_required=True),
                Input("for", "For", 12, placeholder="2 hours, or empty"),
            ),
        ),
    ),
    "unlimit": GateAction(
        lambda ledger, *of: ledger.operator_limits.unlimit(*of),
        form=Form(
            "Lift the limit …",
            "End the limit before its time.",
            "Lift the limit",
            lambda limits, _gate: limits.limit is not None,
        ),
    ),
    "lift-ceiling": GateAction(
        lambda ledger, *of: ledger.operator_limits.lift_ceiling(*of),
        "without a ceiling",
        form=Form(
            "Lift the ceiling …",
            "Forget the ceiling: the handler takes larger batches now.",
            "Lift the ceiling",
            lambda _limits, gate: gate.ceiling is not None,
        ),
    ),
    "restart": GateAction(
        lambda ledger, *of: ledger.operator_limits.restart(*of),
        "its next start with a new checkpoint begins by startingOffsets",
        _settled_by_a_restart,
        Command(
            REPAIR,
            "Let a new checkpoint read everything again.",
            """Let a gate's query read everything again when it next starts with a new checkpoint.

            The query then begins at its startingOffsets, so records that the gate has processed may
            be processed again.
            No backfill runs open batches until that start. The start resolves the open batches that
            the query reads again.
            The command applies to one start within a day; a start with the old checkpoint does not
            use it up.
            Without this command, a query with a new checkpoint continues at the gate's position in
            the ledger.
            """,
            'headrace restart orders --why "the table is built anew"',
            all_stages=True,
        ),
    ),
}
"""Actions by the names of their commands and forms. The gate's page shows the forms in this
order."""

FORMS: Final[Mapping[str, Form]] = {
    name: action.form for name, action in GATE_ACTIONS.items() if action.form is not None
}
COMMANDS: Final[Mapping[str, Command]] = {
    name: action.command for name, action in GATE_ACTIONS.items() if action.command is not None
}

FORMS_CSS: Final = (
    ", ".join(f"main:has(.no-{name}) .do-{name}" for name in FORMS) + " { display: none; }\n"
)
"""Style sheet that hides the forms of actions that would change nothing now. If ``pause`` would
change nothing, for example, the live region of the gate's state has the class ``no-pause``."""


def impossible_actions(limits: "OperatorLimits", gate: "GateSnapshot") -> list[str]:
    """Return the names of the forms whose actions would change nothing now."""
    return [name for name, form in FORMS.items() if not form.possible(limits, gate)]
