"""The exceptions Headrace raises, one tree.

::

    HeadraceError
    ├── OptionError          an option or argument is unknown, of the wrong type or out of range
    │   ├── RejectionError   a handler rejects rows that are not of its batch
    │   └── TooManyRejectedError  a handler rejects more than a batch may
    ├── LedgerError          the ledger cannot be opened, read or written
    │   └── LedgerSchemaError  the ledger's schema is not one this version can use
    ├── GateInUseError       another query stands behind the gate
    ├── SourceError          a source cannot be read
    │   ├── BrokerError      a broker cannot be reached, or refuses
    │   ├── RegistryError    a schema registry cannot be reached, or refuses
    │   └── DataLossError    offsets that were to be read are gone
    ├── DecodeError          a record cannot be decoded, and there is no batch to reject it
    ├── JournalError         a journal cannot be opened, read or written
    │   ├── NoJournalError   there is none where one is to be read
    │   ├── LaneTakenError   another writer has a lane of it
    │   └── CorruptionError  a file of a journal is not what was written
    ├── HandlerExitError     a handler raised what ends a program, such as SystemExit
    ├── NotProcessedError    a batch failed, and its records are not at fault
    │   ├── MachineryError   it could not be run: Spark, the disk or the ledger failed
    │   └── BatchSplitError  a sink has parts of it, and so does not take the whole
    ├── SinkAwayError        a handler says that its sink takes nothing now
    ├── ReceiverError        records cannot be received, or are not taken
    ├── SignalError          a flow's stages cannot tell each other what they must
    └── SetupError           this machine lacks something a command needs (Java, a jar, a port)

Each message is one sentence that names the thing, its value, the allowed values and the remedy.
"""

READ = "It happened while Headrace read the source, or a schema."
"""Stands below what is raised while a source is read: Spark has it only as text then, in which a
sink's error may look the same."""


class HeadraceError(Exception):
    """The root of every error that is a user's to solve; its text needs no stack trace."""


class OptionError(HeadraceError, ValueError):
    """An option or argument is unknown, of the wrong type, out of range or contradictory."""


class RejectionError(OptionError):
    """A handler rejects rows that are not of its batch, which says nothing of the batch's records.

    So the batch is deferred, and not isolated.
    """


class TooManyRejectedError(OptionError):
    """A handler rejects more records than a batch may; its halves may have fewer."""


class LedgerError(HeadraceError):
    """The ledger cannot be opened, read or written."""


class LedgerSchemaError(LedgerError):
    """The ledger's schema is newer than this version of Headrace, or not a ledger's."""


class NoLedgerError(LedgerError):
    """There is no ledger at this place."""


class GateInUseError(HeadraceError):
    """Another query stands behind the gate, which has one at a time; its text names that one."""


class SourceError(HeadraceError):
    """A source cannot be read."""


class BrokerError(SourceError):
    """A Kafka broker cannot be reached, or refuses a request."""


class RegistryError(SourceError):
    """A schema registry cannot be reached, or refuses; the records are not at fault."""


class DataLossError(SourceError):
    """Offsets that were to be read are gone before they were processed."""


class DecodeError(HeadraceError):
    """A record cannot be decoded, where no handler of a gate runs that would reject it."""


class JournalError(HeadraceError):
    """A journal cannot be opened, read or written; records to be appended are not acknowledged."""


class NoJournalError(JournalError):
    """There is no journal where one is to be read."""


class LaneTakenError(JournalError):
    """Another writer has a lane, which has one at a time."""


class CorruptionError(JournalError):
    """A file of a journal is not what was written; its text names the file and the first offset."""


class HandlerExitError(HeadraceError):
    """A handler raised what is no ``Exception``: SystemExit, KeyboardInterrupt; it is the cause."""


class NotProcessedError(HeadraceError):
    """A batch failed for a reason outside of its records; it is run again, and none is blamed.

    Attributes:
        last: Where records that have nothing to do with each other fail one after the other: the
            class and the message of what the handler raised last, which the text begins with.
    """

    def __init__(self, text: str, last: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.last = last


class MachineryError(NotProcessedError):
    """A batch could not be run: Spark refused to read it again, a disk is full, the ledger failed.

    The cause is the original exception.
    """


class SinkAwayError(HeadraceError):
    """The sink takes nothing now, whatever the records: for a handler to raise.

    Raise it where your client's exception does not say so by itself, such as an answer with a code
    of its own. In a task of Spark raise exactly this class: a class that is derived from it comes
    from there as text, and is not known.
    """


class BatchSplitError(NotProcessedError):
    """A sink has parts of a batch, so it does not take the batch as a whole."""


class ReceiverError(HeadraceError):
    """Records cannot be received, or are not taken; their sender keeps them."""


class SignalError(HeadraceError):
    """A flow's stages cannot tell each other what they must."""


class SetupError(HeadraceError):
    """The machine lacks something that a command needs."""
