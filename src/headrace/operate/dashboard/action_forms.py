"""Performs the actions of forms. The ledger keeps each action's author, time and reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.errors import HeadraceError, OptionError
from headrace.gate import DeadLetter, DeadLetterRecord, DeadLetterStatus, Ledger
from headrace.operate.dashboard.failure_pages import corrected, failed_alike, letters_alike
from headrace.operate.dashboard.pages import NotFoundError, Site, whole_number
from headrace.operate.status.actions import WantedLimit
from headrace.operate.status.gate_actions import FORMS, GATE_ACTIONS
from headrace.operate.status.letter_sending import LetterSender
from headrace.operate.status.words import count, plural

Form = Mapping[str, str]


def perform(site: Site, what: str, form: Form, who: str) -> str:
    """Perform the action ``what`` with a form's fields. Return its effect in a sentence.

    Raise OptionError if a field is missing or invalid, or if the action is not possible any more.
    Raise NotFoundError for an unknown action or gate.
    """
    action = _ACTIONS.get(what)
    if action is None:
        raise NotFoundError(
            "The dashboard has no action of this name; send the form from its page."
        )
    why = form.get("why", "").strip()
    if not why:
        raise OptionError(
            "The reason is empty; give the reason for operators who look at this action later."
        )
    with site.link.writing() as ledger:
        gate = form.get("gate", "")
        if gate and ledger.gates.get(gate) is None:
            raise NotFoundError(f"The ledger has no gate {gate!r}.")
        return action(site, ledger, form, who, why)


Action = Callable[[Site, Ledger, Form, str, str], str]


def _on_gate(name: str, _site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate = _field(form, "gate")
    if name == "stop" and ledger.gates.query(gate) is None:
        raise OptionError(f"No query runs behind gate {gate}; load its page again.")
    if name == "limit":
        lasts = form.get("for")
        action = WantedLimit.parse(_field(form, "records_per_s"), lasts, "The time").action
    else:
        action = GATE_ACTIONS[name]
    _, sentence = action.act(ledger, gate, who, why)
    return sentence


def _retry(_site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate, key = _field(form, "gate"), _field(form, "key")
    if not ledger.repairs.retry(gate, [key], who, why):
        raise OptionError(
            f"Batch {key} does not have the status failed any more; load its page again."
        )
    return f"Batch {key} does not wait for its next backfill any more."


def _retry_sink(_site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate = _field(form, "gate")
    if not ledger.repairs.retry_sink(gate, who, why):
        raise OptionError(f"Gate {gate} does not wait for its sink any more; load its page again.")
    return f"Gate {gate} tries its sink now."


def _retry_alike(_site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate, error = _field(form, "gate"), _given(form, "error")
    last = _number(form, "last")
    batches = [
        batch for batch in failed_alike(ledger, gate, error) if batch.created_time_ms <= last
    ]
    _refuse_others(form, len(batches), "batch")
    keys = [batch.batch_key for batch in batches]
    number = ledger.repairs.retry(gate, keys, who, why)
    return f"{plural(number, 'batch')} of gate {gate} {_do(number)} not wait any more."


def _drop_batch(_site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate, key = _field(form, "gate"), _field(form, "key")
    if not ledger.repairs.drop_batch(gate, key, who, why):
        raise OptionError(f"Batch {key} is not dead, or was dropped already; load its page again.")
    return f"Batch {key} is dropped."


def _drop_letters(_site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate, letters = _letters(ledger, form)
    number = ledger.repairs.drop_letters(
        gate, [letter.dead_letter_id for letter in letters], who, why
    )
    return f"{plural(number, 'dead letter')} of gate {gate} {_are(number)} dropped."


def _send_letters(site: Site, ledger: Ledger, form: Form, who: str, why: str) -> str:
    gate, letters = _letters(ledger, form)
    numbers = [letter.dead_letter_id for letter in letters]
    topic = form.get("topic", "").strip() or None
    sender = LetterSender(ledger, site.source_options, topic)
    if "value" in form:
        sender.edit, sender.change = who, _correction(form, letters)
    action = ledger.repairs.begin_send(gate, numbers, who, why)
    try:
        sender.send(letters)
    except HeadraceError as error:
        ledger.repairs.end_send(action, f"{sender.outcome()}; then: {error}")
        raise
    ledger.repairs.end_send(action, sender.outcome())
    if not sender.sent:
        raise OptionError(
            "Somebody else is sending these dead letters, or has resolved them; load the page"
            " again."
        )
    return f"Gate {gate}: {sender.outcome()}."


def _correction(
    form: Form, letters: Sequence[DeadLetterRecord]
) -> Callable[[DeadLetter], DeadLetter]:
    if "letter" not in form:
        raise OptionError(
            "The form corrects the value of more than one dead letter; send it from the page of"
            " one dead letter."
        )
    value = corrected(letters[0].letter.value, form["value"])
    if value is None:
        raise OptionError(
            "The value of this dead letter cannot be corrected here; use `headrace dead-letters"
            " send ID --value FILE`."
        )
    if value == letters[0].letter.value:
        raise OptionError("The value is unchanged; correct it, or send the dead letter as it is.")
    return partial(_with_value, value)


def _with_value(value: bytes, letter: DeadLetter) -> DeadLetter:
    return replace(letter, value=value)


def _letters(ledger: Ledger, form: Form) -> tuple[str, list[DeadLetterRecord]]:
    gate = _field(form, "gate")
    if "letter" in form:
        letter = ledger.dead_letters.get(_number(form, "letter"))
        waits = letter is not None and letter.status is DeadLetterStatus.WAITING
        if letter is None or letter.gate != gate or not waits:
            raise OptionError("The dead letter does not wait any more; load the page again.")
        return gate, [letter]
    error, last = _given(form, "error"), _number(form, "last")
    alike = [
        record for record in letters_alike(ledger, gate, error) if record.dead_letter_id <= last
    ]
    _refuse_others(form, len(alike), "dead letter")
    return gate, alike


def _refuse_others(form: Form, number: int, noun: str) -> None:
    shown = _number(form, "number")
    if number != shown or not number:
        raise OptionError(
            f"The page showed {plural(shown, noun)} with this error, and now there are"
            f" {count(number)}; load the page again."
        )


def _given(form: Form, name: str) -> str:
    if name not in form:
        raise OptionError(f"The field {name!r} is missing; send the form from its page.")
    return form[name]


def _number(form: Form, name: str) -> int:
    number = whole_number(_given(form, name))
    if number is None:
        raise OptionError(
            f"The field {name!r} is {form[name][:40]!r}, which is no number; send the form from its"
            " page."
        )
    return number


def _field(form: Form, name: str) -> str:
    value = form.get(name, "").strip()
    if not value:
        raise OptionError(f"The field {name!r} is empty; fill it in.")
    return value


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _do(number: int) -> str:
    return "does" if number == 1 else "do"


_ACTIONS: Final[Mapping[str, Action]] = {
    **{name: partial(_on_gate, name) for name in FORMS},
    "retry": _retry,
    "retry-sink": _retry_sink,
    "retry-alike": _retry_alike,
    "drop-batch": _drop_batch,
    "drop-letters": _drop_letters,
    "send-letters": _send_letters,
}
