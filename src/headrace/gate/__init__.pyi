from headrace.gate.backfill.monitor import (
    BackfillEvent as BackfillEvent,
    Claimed as Claimed,
    Done as Done,
    Failed as Failed,
    LeaseLost as LeaseLost,
    Lost as Lost,
    MarkedDead as MarkedDead,
    Monitor as Monitor,
    PartlyDone as PartlyDone,
    Skipped as Skipped,
)
from headrace.gate.backfill.schedule import (
    ExternalBudget as ExternalBudget,
    UnlimitedBudget as UnlimitedBudget,
    parse_schedule as parse_schedule,
)
from headrace.gate.backfill.scheduler import (
    BackfillScheduler as BackfillScheduler,
    OwnerSettings as OwnerSettings,
)
from headrace.gate.control.batch_cost import SourceCost as SourceCost
from headrace.gate.control.dead import (
    MAX_BACKFILLS as MAX_BACKFILLS,
    BackfillLimits as BackfillLimits,
)
from headrace.gate.control.hold import SinkOutage as SinkOutage
from headrace.gate.control.hop import (
    ChunkRate as ChunkRate,
    HopController as HopController,
    Upstream as Upstream,
)
from headrace.gate.control.input_queue import InputQueue as InputQueue, takes_per_s as takes_per_s
from headrace.gate.control.interval import rounded_up as rounded_up
from headrace.gate.control.law import LawTerms as LawTerms, Shown as Shown
from headrace.gate.control.laws import EstimatorSettings as EstimatorSettings
from headrace.gate.control.limits import (
    LAST_MS as LAST_MS,
    OperatorAction as OperatorAction,
    OperatorActionKind as OperatorActionKind,
    OperatorLimits as OperatorLimits,
)
from headrace.gate.control.parts import Progress as Progress, above as above
from headrace.gate.control.pid import PIDRateEstimator as PIDRateEstimator
from headrace.gate.control.pressure import (
    MAX_CLOCK_AHEAD_MS as MAX_CLOCK_AHEAD_MS,
    MAX_LEASE_MS as MAX_LEASE_MS,
    Epoch as Epoch,
    HopSettings as HopSettings,
    PressureSignal as PressureSignal,
    PressureState as PressureState,
    RateLimit as RateLimit,
    UpstreamThrottle as UpstreamThrottle,
    require_level as require_level,
)
from headrace.gate.control.rate_law import Reason as Reason
from headrace.gate.control.schema_fit import (
    FIT_BATCHES as FIT_BATCHES,
    LOOKED_AT as LOOKED_AT,
    FitCount as FitCount,
    stopped_fitting as stopped_fitting,
)
from headrace.gate.control.sharing import (
    Demand as Demand,
    TokenBucket as TokenBucket,
    catch_up_rate as catch_up_rate,
    fair_shares as fair_shares,
)
from headrace.gate.control.size_ceiling import known_ceiling as known_ceiling
from headrace.gate.execution.batch import (
    Batch as Batch,
    Handler as Handler,
    call_handler as call_handler,
    check_handler as check_handler,
    refuse_unrun as refuse_unrun,
)
from headrace.gate.execution.batch_reader import (
    SparkBatchReader as SparkBatchReader,
    rows_in as rows_in,
)
from headrace.gate.execution.call import RunContext as RunContext
from headrace.gate.execution.connectors import connector_of as connector_of
from headrace.gate.execution.gate import Gate as Gate
from headrace.gate.execution.gate_state import shared_ledger as shared_ledger
from headrace.gate.execution.handler import GatedHandler as GatedHandler
from headrace.gate.execution.listener import (
    GateListener as GateListener,
    progress_event as progress_event,
)
from headrace.gate.execution.policy import (
    STOP as STOP,
    Last as Last,
    OnFailure as OnFailure,
    OutageWord as OutageWord,
    isolate as isolate,
    parse_on_failure as parse_on_failure,
    retry as retry,
    with_outages as with_outages,
)
from headrace.gate.execution.rejections import Place as Place
from headrace.gate.execution.spark_session import (
    RECOMMENDED_CONF as RECOMMENDED_CONF,
    configure as configure,
    register as register,
)
from headrace.gate.execution.stopping import exits_as_errors as exits_as_errors
from headrace.gate.execution.world import BatchRunner as BatchRunner
from headrace.gate.kafka.attempts import known_id as known_id, produce as produce, tag as tag
from headrace.gate.kafka.client.option_values import redact as redact
from headrace.gate.kafka.dead_letter_producer import (
    DeadLetterProducer as DeadLetterProducer,
    resent_record as resent_record,
)
from headrace.gate.kafka.kafka_options import (
    KafkaOptions as KafkaOptions,
    parse_options as parse_options,
)
from headrace.gate.kafka.lookup import Lookup as Lookup
from headrace.gate.kafka.producing import (
    ProducedRecord as ProducedRecord,
    produce_all as produce_all,
)
from headrace.gate.kafka.topic_log import KafkaLog as KafkaLog, lookup_with as lookup_with
from headrace.gate.ledger.checkpoints import CheckpointRecord as CheckpointRecord
from headrace.gate.ledger.connection import (
    NO_RETRIES as NO_RETRIES,
    OF_A_QUERY as OF_A_QUERY,
    Timeouts as Timeouts,
    normalize_url as normalize_url,
    redact_url as redact_url,
    without_secrets as without_secrets,
)
from headrace.gate.ledger.dead_letters import ClaimedLetters as ClaimedLetters
from headrace.gate.ledger.error_report import (
    BAD_VALUE as BAD_VALUE,
    FAILS_AS_A_WHOLE as FAILS_AS_A_WHOLE,
    ErrorReport as ErrorReport,
)
from headrace.gate.ledger.flows import StoredSignal as StoredSignal
from headrace.gate.ledger.gates import GateQuery as GateQuery
from headrace.gate.ledger.history import lost_records as lost_records
from headrace.gate.ledger.ledger import Ledger as Ledger
from headrace.gate.ledger.moments import (
    BUCKETS_MS as BUCKETS_MS,
    Counts as Counts,
    OpenBatches as OpenBatches,
    SeriesPoint as SeriesPoint,
    add_up as add_up,
    pruned_counts as pruned_counts,
)
from headrace.gate.ledger.proof import (
    DEFECTS as DEFECTS,
    Finding as Finding,
    FindingKind as FindingKind,
    Missed as Missed,
    Span as Span,
    Verdict as Verdict,
    Verification as Verification,
    extended as extended,
)
from headrace.gate.ledger.receivers import (
    ReceiverRecord as ReceiverRecord,
    ReceiverReport as ReceiverReport,
    StreamRate as StreamRate,
)
from headrace.gate.ledger.records import (
    BatchRecord as BatchRecord,
    DeadLetter as DeadLetter,
    DeadLetterRecord as DeadLetterRecord,
    DeadLetterStatus as DeadLetterStatus,
    GateMoment as GateMoment,
    GateRecord as GateRecord,
    Loss as Loss,
    PlannedBatch as PlannedBatch,
    PlannedRange as PlannedRange,
    Processed as Processed,
    QueryEnd as QueryEnd,
    RateSample as RateSample,
    Unresolved as Unresolved,
    part_key as part_key,
    part_of as part_of,
)
from headrace.gate.ledger.repairs import MOST_AT_ONCE as MOST_AT_ONCE
from headrace.gate.ledger.transitions import Status as Status
from headrace.gate.source.checkpoint import Checkpoint as Checkpoint, export as export
from headrace.gate.source.comparison import (
    Comparison as Comparison,
    compare_with_checkpoint as compare_with_checkpoint,
    compare_with_log as compare_with_log,
    refuse_a_stranger as refuse_a_stranger,
)
from headrace.gate.source.connector import (
    OF_A_GATE as OF_A_GATE,
    Connector as Connector,
    DeadLetterSink as DeadLetterSink,
    read_directly as read_directly,
    read_in_process as read_in_process,
)
from headrace.gate.source.decoded_values import DecodedValues as DecodedValues
from headrace.gate.source.log import (
    ARROW_SCHEMA as ARROW_SCHEMA,
    HEADERS as HEADERS,
    Log as Log,
    Topic as Topic,
    beginnings as beginnings,
    gone as gone,
)
from headrace.gate.source.losses import OnLoss as OnLoss
from headrace.gate.source.planner import StreamPlanner as StreamPlanner, ToRead as ToRead
from headrace.gate.source.read_bounds import Edge as Edge
from headrace.gate.source.readers import (
    RECORDS_WORTH_A_TASK as RECORDS_WORTH_A_TASK,
    SourceFormat as SourceFormat,
    SourceTask as SourceTask,
    marked_as_read as marked_as_read,
    pack as pack,
)
from headrace.gate.source.replay import assigned as assigned, replay_bounds as replay_bounds
from headrace.gate.source.resumption import GateMemory as GateMemory, continued as continued
from headrace.gate.source.source_options import (
    SHARED as SHARED,
    TOPIC_IDS as TOPIC_IDS,
    SourceOptions as SourceOptions,
    decoded_values as decoded_values,
    exactly_named as exactly_named,
    fails_on_misfit as fails_on_misfit,
    outage_settings as outage_settings,
    parse_source_options as parse_source_options,
)
from headrace.gate.source.stream_offset import (
    Checksums as Checksums,
    ChecksumsBefore as ChecksumsBefore,
    StreamOffset as StreamOffset,
    planned_ids as planned_ids,
)

__all__: list[str]
