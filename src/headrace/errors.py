"""All exceptions that Headrace raises.

::

    HeadraceError
    ├── OptionError          an option or argument is unknown, of the wrong type or out of range
    │   ├── RejectionError   a handler rejects rows that are not of its batch
    │   └── TooManyRejectedError  a handler rejects more than a batch may
    ├── LedgerError          the ledger cannot be opened, read or written
    │   ├── LedgerSchemaError  this version cannot use the ledger's schema
    │   └── NoLedgerError    the ledger does not exist
    ├── GateInUseError       another query uses the gate
    ├── SourceError          a source cannot be read
    │   ├── BrokerError      a broker is unreachable or refuses
    │   ├── RegistryError    a schema registry is unreachable or refuses
    │   └── DataLossError    offsets that were to be read are gone
    ├── DecodeError          a record cannot be decoded, and no gate's handler can reject it
    ├── JournalError         a journal cannot be opened, read or written
    │   ├── NoJournalError   the journal to read does not exist
    │   ├── LaneTakenError   a lane has another writer
    │   └── CorruptionError  a file of a journal is damaged
    ├── HandlerExitError     a handler raised a program's exit, such as SystemExit
    ├── NotProcessedError    a batch failed, and its records are not at fault
    │   ├── MachineryError   the batch could not be run: Spark, the disk or the ledger failed
    │   └── BatchSplitError  a sink has parts of the batch and refuses the whole
    ├── SinkAwayError        a handler reports that its sink is unavailable
    ├── ReceiverError        records cannot be received, or are refused
    ├── SignalError          the stages of a flow cannot exchange signals
    └── SetupError           this machine lacks a requirement of a command (Java, a jar, a port)

Each message is one sentence with the subject, its value, the allowed values and the remedy.
"""

READ = "It happened while Headrace read the source, or a schema."
"""Note added to errors of a source's tasks. Spark passes such errors on as text, in which a sink's
error may look the same."""


class HeadraceError(Exception):
    """Base class of all errors that a user can resolve; its text needs no stack trace."""


class OptionError(HeadraceError, ValueError):
    """An option or argument is unknown, of the wrong type, out of range or contradictory."""


class RejectionError(OptionError):
    """A handler rejects rows that are not in its batch.

    Such an error does not concern the batch's records, so the batch is deferred and not isolated.
    """


class TooManyRejectedError(OptionError):
    """A handler rejects more records than one batch may reject; half a batch may be below this."""


class LedgerError(HeadraceError):
    """The ledger cannot be opened, read or written."""


class LedgerSchemaError(LedgerError):
    """The database's schema is newer than this version of Headrace, or is not a ledger's."""


class NoLedgerError(LedgerError):
    """The ledger does not exist."""


class GateInUseError(HeadraceError):
    """Another query uses the gate, which serves one query at a time; the text names the query."""


class SourceError(HeadraceError):
    """A source cannot be read."""


class BrokerError(SourceError):
    """A Kafka broker is unreachable or refuses a request."""


class RegistryError(SourceError):
    """A schema registry is unreachable or refuses a request; the records are not at fault."""


class DataLossError(SourceError):
    """Offsets are gone before they were processed."""


class DecodeError(HeadraceError):
    """A record cannot be decoded, and no gate's handler is running that could reject it."""


class JournalError(HeadraceError):
    """A journal cannot be opened, read or written; a failed append is not acknowledged."""


class NoJournalError(JournalError):
    """The journal to read does not exist."""


class LaneTakenError(JournalError):
    """A lane, which has one writer at a time, has another writer."""


class CorruptionError(JournalError):
    """A file of a journal is damaged; the text names the file and the first offset."""


class HandlerExitError(HeadraceError):
    """A handler raised a ``BaseException`` such as SystemExit, which is this error's cause."""


class NotProcessedError(HeadraceError):
    """A batch failed for a reason other than its records; the batch runs again, and none is blamed.

    Attributes:
        last: Class and message of the handler's last exception, which the text begins with. Set if
            unrelated records failed one after the other; None otherwise.
    """

    def __init__(self, text: str, last: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.last = last


class MachineryError(NotProcessedError):
    """A batch could not be run: Spark refused to read it again, a disk is full, the ledger failed.

    The cause is the original exception.
    """


class SinkAwayError(HeadraceError):
    """The sink is unavailable for all records; your handler raises this error.

    Raise this error if your client's exception does not show the outage by itself, for example for
    an error code of your service. In a Spark task, raise exactly this class: Spark returns
    exceptions as text, in which a subclass is not recognized.
    """


class BatchSplitError(NotProcessedError):
    """A sink has parts of a batch, and therefore refuses the whole batch."""


class ReceiverError(HeadraceError):
    """Records cannot be received, or are refused; the sender keeps them."""


class SignalError(HeadraceError):
    """The stages of a flow cannot exchange signals."""


class SetupError(HeadraceError):
    """The machine lacks a requirement of a command, such as Java, a jar or a free port."""
