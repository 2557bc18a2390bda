"""Sends dead letters to Kafka again, and resolves the letters that the brokers acknowledge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.gate import ClaimedLetters, DeadLetter, DeadLetterRecord, DeadLetterStatus, Ledger
from headrace.operate.status import words
from headrace.operate.status.sources import source_access

if TYPE_CHECKING:
    from headrace.gate import DeadLetterProducer


_Chosen = tuple[DeadLetterRecord, DeadLetter]
"""A dead letter, and the content to send, which may be corrected."""


@dataclass
class LetterSender:
    """Sends dead letters of a ledger to Kafka, and resolves each letter that is acknowledged."""

    ledger: Ledger
    options: Mapping[str, str]
    topic: str | None
    """Topic to send to; None sends each letter to its own topic."""
    edit: str | None = None
    """Name of the function or person that corrects the letters; the ledger keeps it with each
    letter."""
    change: Callable[[DeadLetter], Any] | None = None
    """Function that returns a letter's corrected content, or None to skip the letter. Without a
    function, letters are sent unchanged."""
    report: Callable[[str], None] | None = None
    """Called with a sentence about the outcome of each letter; None reports nothing."""
    sent: int = 0
    skipped: int = 0
    taken: int = 0
    """Number of letters that were not sent, because another process sends or has resolved them."""
    producers: dict[str, "DeadLetterProducer"] = field(default_factory=dict)

    def send(self, records: Sequence[DeadLetterRecord]) -> None:
        """Send dead letters, and resolve the letters that the brokers acknowledge.

        If ``change`` fails, raise OptionError and send nothing. Raise BrokerError if a broker
        refuses a letter, and OptionError if the options do not suit some brokers. In these two
        cases, the letters that brokers have acknowledged are resolved nevertheless.
        """
        chosen = [(record, self._edited(record)) for record in records]
        gates = {record.batch_key: record.gate for record in records}
        sources = source_access(self.ledger, gates, self.options)
        for record in records:
            if sources[record.batch_key].connector.name != "kafka":
                raise OptionError(
                    f"Dead letter {record.dead_letter_id} came from a journal, to which only a"
                    " receiver can write; export it with `headrace dead-letters export`, send it"
                    " to a receiver, and drop it here with the reason."
                )
        wanted = [(record, edited) for record, edited in chosen if edited is not None]
        self.skipped += len(chosen) - len(wanted)
        numbers = [record.dead_letter_id for record, _ in wanted]
        refused: list[BaseException] = []
        with self.ledger.dead_letters.claimed(numbers) as claim:
            ours = [letter for letter in wanted if self._is_ours(letter[0], claim)]
            # Resolve the letters that one group's brokers have before the next group can fail.
            for servers, group in self._by_servers(ours).items():
                options = sources[group[0][0].batch_key].options
                refused += self._send_group(servers, options, group, claim)
        if refused:
            raise refused[0]

    def _by_servers(self, letters: Iterable[_Chosen]) -> dict[str, list[_Chosen]]:
        groups: dict[str, list[_Chosen]] = {}
        for record, edited in letters:
            servers = self.ledger.batches.servers(record.batch_key) or ""
            groups.setdefault(servers, []).append((record, edited))
        return groups

    def _send_group(
        self,
        servers: str,
        options: Mapping[str, str],
        group: Sequence[_Chosen],
        claim: ClaimedLetters,
    ) -> list[BaseException]:
        """Send the letters for one Kafka cluster, and resolve the acknowledged letters.

        Return the errors of the letters that were refused.
        """
        from headrace.gate import DeadLetterProducer, resent_record  # noqa: PLC0415  (it is slow)

        producer = self.producers.get(servers)
        if producer is None:
            producer = self.producers[servers] = DeadLetterProducer(options)
        submitted = [
            producer.send(resent_record(record.letter, topic=self.topic, mended=edited))
            for record, edited in group
        ]
        producer.flush()
        refused = []
        for (record, edited), outcome in zip(group, submitted, strict=True):
            error = outcome.exception()
            if error is None:
                self._resolve(record, edited, outcome.result(), claim)
            else:
                refused.append(error)
        return refused

    def outcome(self) -> str:
        """Return a phrase: how many letters were sent, and how many another process sends."""
        sentence = f"{words.plural(self.sent, 'dead letter')} sent"
        if self.taken:
            they = "it" if self.taken == 1 else "them"
            sentence += (
                f", {self.taken} left to somebody else, who is sending or has resolved {they}"
            )
        return sentence

    def _is_ours(self, record: DeadLetterRecord, claim: ClaimedLetters) -> bool:
        if record.dead_letter_id in claim.letters:
            return True
        self.taken += 1
        if self.report is not None:
            self.report(
                f"Dead letter {record.dead_letter_id} is not sent: somebody else is sending it, or"
                " has resolved it."
            )
        return False

    def _edited(self, record: DeadLetterRecord) -> DeadLetter | None:
        letter = record.letter
        if self.change is None:
            return letter
        try:
            edited = self.change(letter)
        except Exception as error:
            raise OptionError(
                f"--edit is {self.edit!r}, which failed on dead letter {record.dead_letter_id}"
                f" ({type(error).__name__}: {words.printable(str(error))}); correct the function."
            ) from error
        if edited is None:
            return None
        if not isinstance(edited, DeadLetter) or not _is_bytes(edited):
            raise OptionError(
                f"--edit is {self.edit!r}, which returned a value of type {type(edited).__name__}"
                f" for dead letter {record.dead_letter_id}; it must return a DeadLetter with a"
                " key, value and headers in bytes, such as dataclasses.replace(letter,"
                " value=...), or None to skip it."
            )
        return edited

    def _resolve(
        self, record: DeadLetterRecord, edited: DeadLetter, place: str, claim: ClaimedLetters
    ) -> None:
        other_value = edited.value if edited.value != record.letter.value else None
        outcome = f"sent to {place}" + ("" if self.edit is None else f", edited by {self.edit}")
        number = record.dead_letter_id
        if self.ledger.dead_letters.resolve(
            number, DeadLetterStatus.SENT, outcome, claim, sent_value=other_value
        ):
            self.sent += 1
            sentence = f"Dead letter {number} is {outcome}."
        else:
            sentence = f"Dead letter {number} is {outcome}, but was resolved by somebody else, too."
        if self.report is not None:
            self.report(sentence)


def _is_bytes(letter: DeadLetter) -> bool:
    """Whether a dead letter's key, value and values of headers are all bytes or None."""
    contents = (letter.key, letter.value, *(value for _, value in letter.headers or ()))
    return all(isinstance(content, bytes | None) for content in contents)
