"""All exceptions that Headrace raises.

::

    HeadraceError
    ├── OptionError          an option or argument is unknown, of the wrong type or out of range
    │   ├── RejectionError   a handler rejects rows that are not in its batch
    │   └── TooManyRejectedError  a handler rejects more records than one batch may reject
    ├── LedgerError          the ledger cannot be opened, read or written
    │   ├── LedgerSchemaError  this version cannot use the ledger's schema
    │   └── NoLedgerError    the ledger does not exist
    ├── GateInUseError       another query uses the gate
    ├── SourceError          a source cannot be read
    │   ├── BrokerError      a broker is unreachable or refuses a request
    │   ├── RegistryError    a schema registry is unreachable or refuses a request
    │   └── DataLossError    records are gone from the source before they were processed
    ├── DecodeError          a record cannot be decoded, and no gate's handler can reject it
    ├── JournalError         a journal cannot be opened, read or written
    │   ├── NoJournalError   the journal to read does not exist
    │   ├── LaneTakenError   a lane has another writer
    │   └── CorruptionError  a file of a journal is damaged
    ├── HandlerExitError     a handler tried to end its process, for example with SystemExit
    ├── NotProcessedError    a batch failed for a reason other than its records
    │   ├── MachineryError   the batch could not be run, because Spark, a disk or the ledger failed
    │   └── BatchSplitError  a sink has parts of the batch, and so refuses the whole batch
    ├── SinkAwayError        a handler reports that its sink is unavailable
    ├── ReceiverError        records cannot be received, or are refused
    ├── SignalError          the stages of a flow cannot exchange signals
    └── SetupError           a requirement of a command is missing on this machine (Java, a jar)

Each message is one sentence with the subject, its value, the allowed values and the remedy.
"""

READ = "It happened while Headrace read the source, or a schema."
"""Note that Headrace adds to errors while a task reads a source. Without this note, the error could
be taken for an error of the sink, because Spark passes a task's error on as text."""


class HeadraceError(Exception):
    """Base class of all errors that a user can resolve from the message, without a stack trace."""


class OptionError(HeadraceError, ValueError):
    """An option or argument is unknown, of the wrong type, out of range, or contradicts another."""


class RejectionError(OptionError):
    """A handler rejects rows that are not in its batch.

    The cause is in the handler, not in the batch's records. So the batch is deferred and not
    isolated.
    """


class TooManyRejectedError(OptionError):
    """A handler rejects more records than one batch may reject.

    If ``on_failure`` isolates failing records, the batch then runs in parts. Each part may stay
    below the limit.
    """


class LedgerError(HeadraceError):
    """The ledger cannot be opened, read or written."""


class LedgerSchemaError(LedgerError):
    """The database has a newer schema than this version of Headrace, or it is not a ledger."""


class NoLedgerError(LedgerError):
    """The ledger to open does not exist."""


class GateInUseError(HeadraceError):
    """Another query, which the message names, uses the gate. A gate serves one query at a time."""


class SourceError(HeadraceError):
    """A source of records cannot be read."""


class BrokerError(SourceError):
    """A Kafka broker is unreachable or refuses a request."""


class RegistryError(SourceError):
    """A schema registry is unreachable or refuses a request. The cause is not in the records."""


class DataLossError(SourceError):
    """Records are gone from the source before they were processed."""


class DecodeError(HeadraceError):
    """A record cannot be decoded, and no gate's handler runs that could reject the record."""


class JournalError(HeadraceError):
    """A journal cannot be opened, read or written. A failed append is not acknowledged."""


class NoJournalError(JournalError):
    """The journal to read does not exist."""


class LaneTakenError(JournalError):
    """Another process writes to the lane. A lane has one writer at a time."""


class CorruptionError(JournalError):
    """A file of a journal is damaged. The message names the file and the first damaged offset."""


class HandlerExitError(HeadraceError):
    """A handler raised a ``BaseException`` such as ``SystemExit``, which is the ``__cause__``."""


class NotProcessedError(HeadraceError):
    """A batch failed for a reason other than its records. It is run again, and no record is blamed.

    Attributes:
        last: The class and the message of the handler's last exception, if an isolation stopped
            because unrelated records failed one after another; else None. The text of this error
            begins with this class and message.
    """

    def __init__(self, text: str, last: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.last = last


class MachineryError(NotProcessedError):
    """A batch could not be run because Spark, a disk or the ledger failed.

    ``__cause__`` is the original exception.
    """


class SinkAwayError(HeadraceError):
    """The sink is unavailable for all records. Raise this error in your handler.

    Raise it if the exception of your client does not show the outage by itself, for example if your
    service responds with an error code. In a Spark task, raise exactly this class, not a subclass:
    Spark passes exceptions on as text, in which Headrace does not recognize a subclass.
    """


class BatchSplitError(NotProcessedError):
    """A sink has parts of a batch already, so it refuses the whole batch."""


class ReceiverError(HeadraceError):
    """Records cannot be received, or are refused. They are not stored, so the sender keeps them."""


class SignalError(HeadraceError):
    """The stages of a flow cannot exchange signals."""


class SetupError(HeadraceError):
    """A requirement of a command is missing on this machine, such as Java, a jar or a free port."""
