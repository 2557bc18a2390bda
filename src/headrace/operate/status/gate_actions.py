"""Actions of operators on a gate, each declared once: a new action is a new entry here.

The entry declares the command, its line in ``headrace --help``, and the form on the gate's page.
``headrace --help`` imports this module, so this module does not import the gate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.gate import Ledger, OperatorAction, OperatorLimits
    from headrace.operate.status.snapshot import GateSnapshot


@dataclass(frozen=True, slots=True)
class Command:
    """The command of an action.

    Attributes:
        group: The group that lists the command in ``headrace --help``.
        summary: The command's line in ``headrace --help``.
        help: The command's own help.
        example: Example of a call.
        all_stages: Whether the command acts on all stages of a flow. Default: on the first stages,
            because pausing them pauses all.
    """

    group: str
    summary: str
    help: str
    example: str
    all_stages: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a form, besides the reason.

    Attributes:
        name: Name in the request.
        label: Label on the page.
        size: Width (characters).
        is_required: Whether the browser refuses an empty field.
        placeholder: Text in the empty field.
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
        possible: Whether the action would change anything now; the page hides the form otherwise.
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
        effect: Writes the action into the ledger, from the gate, the author and the reason, and
            returns the limits then in force. None for a form with an effect that needs its fields
            (`dashboard.action_forms`).
        done: Effect of the action, in words after the gate's name. Default: the limits in force.
        also: Returns a further effect on a gate, in words after ``done``; empty without one.
        command: The command, if it needs no arguments besides the gates and the reason.
        form: The form on the gate's page; None without one.
    """

    effect: "Callable[[Ledger, str, str, str], OperatorLimits] | None" = None
    done: str | None = None
    also: "Callable[[Ledger, str], str]" = lambda _ledger, _gate: ""
    command: Command | None = None
    form: Form | None = None

    def act(self, ledger: "Ledger", gate: str, by: str, why: str) -> "tuple[OperatorLimits, str]":
        """Do the action. Return the limits then in force, and a sentence about the change."""
        if self.effect is None:
            raise TypeError("the effect of this action needs the fields of its form")
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
    waits, is_settled = ("waits", "is settled") if number == 1 else ("wait", "are settled")
    return f"; {batches} {waits} until then, and {is_settled} if it reads them again"


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
            "Plan no batch until it is resumed.",
            """Have gates plan no batch from their next plan on, until they are resumed.

            What runs already is finished, and failed batches are run again as before. Receivers go
            on.
            Of a flow the first stages are paused; the others process what is on its way.
            """,
            'headrace pause orders --why "sink migration"',
        ),
        form=Form(
            "Pause …",
            "Plan no more records until it is resumed.",
            "Pause",
            lambda limits, _gate: not limits.paused,
        ),
    ),
    "resume": GateAction(
        lambda ledger, *of: ledger.operator_limits.resume(*of),
        command=Command(
            RUNNING,
            "End a pause or a drain.",
            "End a pause or a drain; of a flow, in all of its stages. A limit stays.",
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
            "Finish what is admitted, to stop the query.",
            "Drain",
            lambda limits, _gate: not limits.draining,
        ),
    ),
    "stop": GateAction(
        lambda ledger, *of: ledger.operator_limits.stop(*of),
        "its query ends once its batch is done",
        form=Form(
            "Stop …",
            "End its query once its batch is done; its next start goes on there.",
            "Stop the query",
            lambda limits, gate: gate.query is not None and limits.stop is None,
        ),
    ),
    "limit": GateAction(
        form=Form(
            "Limit …",
            "Cap its rate, in place of a limit that is in force.",
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
            "Before its time.",
            "Lift the limit",
            lambda limits, _gate: limits.limit is not None,
        ),
    ),
    "lift-ceiling": GateAction(
        lambda ledger, *of: ledger.operator_limits.lift_ceiling(*of),
        "without a ceiling",
        form=Form(
            "Lift the ceiling …",
            "Its handler takes larger batches now.",
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
            "Have a new checkpoint read everything again.",
            """Have the next start of a gate's query with a new checkpoint read everything again.

            It begins by its startingOffsets, and what the gate has processed may be processed
            again. Open batches that it reads again are settled then, and no backfill runs any until
            then. It is obeyed once, within a day; a start with the old checkpoint leaves it as it
            is.
            Without this, a query whose checkpoint was deleted goes on where the ledger stands.
            """,
            'headrace restart orders --why "the table is built anew"',
            all_stages=True,
        ),
    ),
}
"""Actions by the names of their commands and forms, in the order of the page."""

FORMS: Final[Mapping[str, Form]] = {
    name: action.form for name, action in GATE_ACTIONS.items() if action.form is not None
}
COMMANDS: Final[Mapping[str, Command]] = {
    name: action.command for name, action in GATE_ACTIONS.items() if action.command is not None
}

FORMS_CSS: Final = (
    ", ".join(f"main:has(.no-{name}) .do-{name}" for name in FORMS) + " { display: none; }\n"
)
"""Style sheet that hides the forms of actions that would change nothing now. The live region of
the gate's state has a class for each of them."""


def impossible_actions(limits: "OperatorLimits", gate: "GateSnapshot") -> list[str]:
    """Return the actions that would change nothing now, by the names of their forms."""
    return [name for name, form in FORMS.items() if not form.possible(limits, gate)]
