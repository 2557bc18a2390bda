__version__: str

from headrace.core.ranges import OffsetRange as OffsetRange
from headrace.decoding import (
    SchemaRegistry as SchemaRegistry,
    avro as avro,
    decode as decode,
    json as json,
    protobuf as protobuf,
)
from headrace.errors import (
    BatchSplitError as BatchSplitError,
    BrokerError as BrokerError,
    DataLossError as DataLossError,
    GateInUseError as GateInUseError,
    HeadraceError as HeadraceError,
    LedgerError as LedgerError,
    LedgerSchemaError as LedgerSchemaError,
    MachineryError as MachineryError,
    OptionError as OptionError,
    RegistryError as RegistryError,
    SetupError as SetupError,
    SinkAwayError as SinkAwayError,
    SourceError as SourceError,
)
from headrace.gate import (
    Batch as Batch,
    Gate as Gate,
    OnFailure as OnFailure,
    configure as configure,
    isolate as isolate,
    register as register,
    retry as retry,
)
from headrace.journal.receivers.spark import Receivers as Receivers
from headrace.operate import GateSnapshot as GateSnapshot

__all__: list[str]
