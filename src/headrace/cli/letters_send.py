"""``headrace letters send``: bring dead letters back to Kafka, to be processed once more."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Annotated, Any

import typer

from headrace.cli.handlers import load_function
from headrace.cli.letters import GateName, letters, pages, waiting_letter
from headrace.cli.lines import printable
from headrace.cli.source_options import Option, OptionsFile, reached, source_options
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.cli.words import plural
from headrace.errors import OptionError
from headrace.kafka.dead_letter_producer import DeadLetterProducer, resent_record
from headrace.ledger import DeadLetter, DeadLetterRecord, Ledger, LetterStatus

Edit = Callable[[DeadLetter], Any]


@letters.command()
def send(
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", min=1, help="Which; the list has their ids."),
    ] = None,
    *,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    everything: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
    gate: GateName = None,
    topic: Annotated[
        str | None, typer.Option(help="Send them to this topic, and not back to their own.")
    ] = None,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called as edit(letter), a headrace.ledger.DeadLetter; key, value and headers of "
            "what it answers are sent, and nothing if it answers None.",
        ),
    ] = None,
    option: Option = None,
    options_file: OptionsFile = None,
) -> None:
    """Send dead letters that wait to Kafka again, by ID or with --all.

    Headers say where each was: headrace.dead-letter.topic, .partition and .offset.
    A letter is sent when the brokers have acknowledged it.
    If this process dies in between, it still waits, and the next time it is sent once more.
    """
    if bool(ids) == everything or (gate is not None and not everything):
        raise OptionError("Name the letters by their IDs, or with --all, if need be of one --gate.")
    given = source_options(option or (), options_file)
    change = None if edit is None else load_function("--edit", edit)
    # What is to be sent is there already: a ledger that is not is never made here.
    with Ledger.open(ledger, create=False) as reader:
        gates_of(reader, gate, ledger)
        for each in ids or ():
            waiting_letter(reader, each, ledger, "sent")
    with Ledger.open(ledger) as opened:
        sender = _Sender(opened, given, topic, edit, change)
        if everything:
            for page in pages(opened, gate, [LetterStatus.WAITING]):
                sender.send(page)
        else:
            chosen = dict.fromkeys(ids or ())
            sender.send([waiting_letter(opened, each, ledger, "sent") for each in chosen])
    skipped = f", {sender.skipped} skipped by {edit}" if edit is not None else ""
    typer.echo(f"{plural(sender.sent, 'dead letter')} sent{skipped}.")


class _Sender:
    """Sends letters, and resolves those that the brokers have.

    Args:
        ledger: Theirs.
        options: Of the stream, as given.
        topic: Where to, if not to their own.
        edit: The name of ``change``.
        change: Mends a letter before it is sent.
    """

    def __init__(
        self,
        ledger: Ledger,
        options: Mapping[str, str],
        topic: str | None,
        edit: str | None,
        change: Edit | None,
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._topic = topic
        self._edit = edit
        self._change = change
        self._producers: dict[str, DeadLetterProducer] = {}
        self.sent = 0
        self.skipped = 0

    def send(self, records: Sequence[DeadLetterRecord]) -> None:
        """Send these.

        Raises:
            OptionError: The user's function failed; what was before that letter is not sent either.
            BrokerError: One was not taken; those that were are resolved.
            LedgerError: The ledger cannot be read or written.
        """
        chosen = [(record, self._mended(record)) for record in records]
        gates = {record.schedule_id: record.gate for record in records}
        ways = reached(self._ledger, gates, self._options)
        for record in records:
            if ways[record.schedule_id].connector.name != "kafka":
                raise OptionError(
                    f"Dead letter {record.dead_letter_id} came from a journal, to which only a"
                    " receiver can write; take it from headrace letters export, send it to that,"
                    " and drop it here with the reason."
                )
        handed = [
            (record, self._hand_over(record, mended, ways[record.schedule_id].options))
            for record, mended in chosen
            if mended is not None
        ]
        self.skipped += len(chosen) - len(handed)
        for producer in self._producers.values():
            producer.flush()
        refused: list[BaseException] = []
        for record, outcome in handed:
            error = outcome.exception()
            if error is None:
                self._resolve(record, outcome.result())
            else:
                refused.append(error)
        if refused:
            raise refused[0]

    def _mended(self, record: DeadLetterRecord) -> DeadLetter | None:
        letter = record.letter
        if self._change is None:
            return letter
        try:
            mended = self._change(letter)
        except Exception as error:
            raise OptionError(
                f"--edit is {self._edit!r}, which failed on dead letter {record.dead_letter_id}"
                f" ({type(error).__name__}: {printable(str(error))}); correct it."
            ) from error
        if mended is None:
            return None
        if not isinstance(mended, DeadLetter) or not _is_bytes(mended):
            raise OptionError(
                f"--edit is {self._edit!r}, which for dead letter {record.dead_letter_id}"
                f" answers a value of type {type(mended).__name__}; it must answer the letter, such"
                " as dataclasses.replace(letter, value=...), in bytes, or None to skip it."
            )
        return mended

    def _hand_over(
        self, record: DeadLetterRecord, mended: DeadLetter, options: Mapping[str, str]
    ) -> Future[str]:
        servers = self._ledger.servers(record.schedule_id) or ""
        if servers not in self._producers:
            self._producers[servers] = DeadLetterProducer(options)
        message = resent_record(record.letter, topic=self._topic, mended=mended)
        return self._producers[servers].send(message)

    def _resolve(self, record: DeadLetterRecord, place: str) -> None:
        how = f"sent to {place}" + ("" if self._edit is None else f", edited by {self._edit}")
        number = record.dead_letter_id
        if self._ledger.resolve(number, LetterStatus.SENT, how):
            self.sent += 1
            typer.echo(f"Dead letter {number} is {how}.")
        else:
            typer.echo(f"Dead letter {number} is {how}, but was resolved by somebody else, too.")


def _is_bytes(letter: DeadLetter) -> bool:
    """Whether what is to be sent of it is bytes, or null, as a user's function has to leave it."""
    headers = letter.headers or ()
    contents = (letter.key, letter.value, *(value for _, value in headers))
    return all(isinstance(each, bytes | None) for each in contents)
