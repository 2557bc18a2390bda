"""Tables of the ledger, the same on SQLite and PostgreSQL.

Times are ms since the epoch. Leases are measured by the database's clock, which all processes
share.

A test makes sure that the migrations create exactly these tables. Every query uses an index, so no
query becomes slower as the history grows.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

VERSION_TABLE: Final = "headrace_version"
"""Table with the version of the schema. Its name is not Alembic's default, so another program can
use Alembic in the same database."""

SCHEMA_VERSION: Final = "0002"
"""Version of the newest migration; versions are compared as text."""

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns row numbers only to a key of exactly the type INTEGER.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")

gate: Final = Table(
    "gate",
    metadata,
    Column("name", Text, primary_key=True),
    Column("interval_ms", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("estimator", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Random id of the row: the checkpoints of the gate's queries store it to know their ledger.
    Column("gate_id", Text, nullable=False),
    Column("rate_per_s", Double),
    Column("rate_time_ms", BigInteger),
    # Known cost of a batch, as the learned law writes it.
    Column("batch_cost", Text),
    # The largest batch that the handler takes, as `SizeCeiling` writes it.
    Column("size_ceiling", Text),
    # The batch from which the newest rate sample was learnt.
    Column("reported", Text),
    # The batch that the engine requested last, and the number of its requests. No foreign key:
    # SQLite cannot add one to an existing table.
    Column("begun", Text),
    Column("begins", BigInteger, nullable=False, server_default="0"),
    # Rate limit set by a downstream stage in its flow, and its expiry by the database's clock.
    Column("throttle_per_s", Double),
    Column("throttled_by", Text),
    Column("throttle_level", Double),
    Column("throttle_origin_per_s", Double),
    Column("throttle_until_ms", BigInteger),
    # Pressures that the gate's stage has received from downstream; a restart continues with them.
    Column("pressures", Text),
    # The query that owns the gate, and the end of its lease by the database's clock; until then no
    # other query begins a batch.
    Column("query_owner", Text),
    Column("query_driver", Text),
    Column("query_read", Text),
    Column("query_described", Text),
    Column("query_checkpoint", Text),
    Column("query_checkpoint_id", Text),
    Column("query_since_ms", BigInteger),
    Column("query_until_ms", BigInteger),
    # Value of `begins` when that query claimed the gate.
    Column("query_begins", BigInteger),
    # Time by the database's clock when the last query ended, how (`QueryEnd`), and the error, if
    # any. Empty while a query owns the gate, or if its process died silently.
    Column("ended_ms", BigInteger),
    Column("ended", Text),
    Column("ended_error", Text),
    # Number of calls of the handler.
    Column("sequence", BigInteger, nullable=False, server_default="0"),
    # Total offsets of the gate's losses, to detect a deleted loss.
    Column("lost_offsets", BigInteger, nullable=False, server_default="0"),
    # Operators' settings in force, rows of `action`: a pause or a drain, a limit, a stop of the
    # owning query; and the gate's newest action. No foreign keys: SQLite cannot add them to an
    # existing table.
    Column("hold_action", BigInteger),
    Column("limit_action", BigInteger),
    Column("stop_action", BigInteger),
    Column("last_action", BigInteger),
    # While the gate's batch waits for its sink: the outage (`SinkOutage`), and the time at which an
    # operator asked to run the batch at once.
    Column("sink_outage", Text),
    Column("sink_retry_ms", BigInteger),
    # Totals of batches that were deleted as old, by status and reason, for metrics.
    Column("pruned_totals", Text),
)

action: Final = Table(
    "action",
    metadata,
    Column("action_id", _RowNumber, primary_key=True),
    Column("gate", Text, ForeignKey("gate.name"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("by_whom", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("records_per_s", Double),
    Column("until_ms", BigInteger),
    # The id that an `adopt` names, or the failures of another action, in words.
    Column("target", Text),
    # Outcome of an action on failures; null while the action runs, or if it was interrupted.
    Column("outcome", Text),
    # Time at which the gate's planner first obeyed the action, or a later action.
    Column("seen_ms", BigInteger),
    Column("last_call", Text, nullable=False, unique=True),
    Index(None, "gate", "action_id"),
)
"""Operators' actions on gates and on failures: one row per action, never deleted."""

rate: Final = Table(
    "rate",
    metadata,
    Column("rate_id", _RowNumber, primary_key=True),
    Column("gate", Text, ForeignKey("gate.name"), nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("rate_per_s", Double),
    Column("records", BigInteger, nullable=False),
    Column("processing_delay_ms", BigInteger, nullable=False),
    Column("scheduling_delay_ms", BigInteger, nullable=False),
    Column("processing_rate_per_s", Double),
    Column("proportional", Double),
    Column("integral", Double),
    Column("derivative", Double),
    Column("query_batch_id", BigInteger),
    # No foreign key: a sample outlives its batch or goes before it when history is pruned.
    Column("batch_key", Text),
    Index(None, "gate", "time_ms"),
)

batch_table: Final = Table(
    "batch",
    metadata,
    Column("batch_key", Text, primary_key=True),
    Column("gate", Text, ForeignKey("gate.name"), nullable=False),
    Column("checkpoint_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("query_batch_id", BigInteger),
    Column("created_time_ms", BigInteger, nullable=False),
    Column("start_time_ms", BigInteger),
    Column("end_time_ms", BigInteger),
    Column("reason", Text, nullable=False),
    Column("planned_records", BigInteger, nullable=False),
    # Approximate size of the records, if their sizes were measured.
    Column("planned_bytes", BigInteger),
    Column("lag", BigInteger),
    Column("rate_per_s", Double),
    Column("records", BigInteger),
    Column("error_class", Text),
    Column("error_message", Text),
    Column("error_trace", Text),
    Column("owner", Text),
    Column("lease_until_ms", BigInteger),
    Column("resolution", Text),
    # Id of the last call that changed the row: a call repeated after a lost answer finds its id.
    Column("last_call", Text),
    # Number of attempts that are failed backfills.
    Column("backfills", Integer, nullable=False, server_default="0"),
    # Whether the outcome of a run is unknown: the batch may be in its sink.
    Column("outcome_unknown", Boolean, nullable=False, server_default=false()),
    # Time at which an operator asked for the next backfill at once.
    Column("retry_ms", BigInteger),
    # A JSON object (`control.parts.Progress`): the finished parts of a batch that is run in parts.
    Column("progress", Text),
    # Number of offsets finished according to the progress.
    Column("done_records", BigInteger, nullable=False, server_default="0"),
    Index(None, "gate", "created_time_ms"),
    Index(None, "gate", "status", "created_time_ms"),
)

batch_range: Final = Table(
    "batch_range",
    metadata,
    Column("failure_id", _RowNumber, primary_key=True),
    Column("batch_key", Text, ForeignKey("batch.batch_key", ondelete="CASCADE"), nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("until_offset", BigInteger, nullable=False),
    Column("bootstrap_servers", Text, nullable=False),
    Column("latest_offset", BigInteger),
    Column("reason", Text),
    Column("topic_id", Text),
    UniqueConstraint("batch_key", "topic", "partition", "start_offset"),
)
"""Ranges of batches, written before the batch runs. ``failure_id`` only numbers the rows."""

lost: Final = Table(
    "lost",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("from_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    # "" if unknown, because a column of a primary key cannot be null.
    Column("topic_id", Text, primary_key=True, server_default=""),
    # The batch that could not read the range; "" if the range was gone before a batch was planned.
    Column("batch_key", Text, primary_key=True, server_default="", index=True),
    Column("reason", Text),
)

accepted: Final = Table(
    "accepted",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" if unknown, because a column of a primary key cannot be null.
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("from_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
)
"""Lost or skipped offsets that an operator has accepted as unprocessed, with the reason."""

dead_letter: Final = Table(
    "dead_letter",
    metadata,
    Column("dead_letter_id", _RowNumber, primary_key=True),
    Column("batch_key", Text, ForeignKey("batch.batch_key", ondelete="CASCADE"), nullable=False),
    Column("gate", Text, ForeignKey("gate.name"), nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", Text),
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("timestamp_type", Integer, nullable=False),
    Column("error_class", Text, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("error_trace", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("resolved_ms", BigInteger),
    Column("resolution", Text),
    # Corrected value that was sent instead of ``value``; ``value`` stays.
    Column("sent_value", LargeBinary),
    # End of the claim: until then only the claiming process may send the letter.
    Column("claimed_until_ms", BigInteger),
    Column("last_call", Text),
    UniqueConstraint("batch_key", "topic", "partition", "offset"),
    Index(None, "gate", "status", "dead_letter_id"),
)
"""Records that cannot be processed, with key, value and headers."""

pruned: Final = Table(
    "pruned",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" if unknown, because a column of a primary key cannot be null.
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("start_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
)
"""Ranges of batches that were deleted as old. Neighbouring ranges are joined to one row."""

checkpoint: Final = Table(
    "checkpoint",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" if unknown, because a column of a primary key cannot be null.
    Column("topic_id", Text, primary_key=True),
    # JSON objects, by partition: the start of the first batch and the end of the newest batch.
    Column("start_offsets", Text, nullable=False),
    Column("until_offsets", Text, nullable=False),
    # Number of offsets that the batches have planned.
    Column("offsets", BigInteger, nullable=False),
    # The batch that the engine requested last, and the gate's number of requests at that time.
    Column("begun", Text),
    Column("begins", BigInteger, nullable=False),
)
"""Offsets planned by each checkpoint. A verification compares batches with these rows, which are
kept after the batches are deleted."""

position: Final = Table(
    "position",
    metadata,
    Column("topic_id", Text, primary_key=True),
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, nullable=False),
    # A JSON object, by partition: every batch writes it, and one row is cheaper than a hundred.
    Column("until_offsets", Text, nullable=False),
)
"""End offsets of each gate's newest checkpoint, for each topic or journal with an id. Without this
table, the position in a partition without new records would need a search through all batches. Rows
are kept when batches are deleted."""

receiver: Final = Table(
    "receiver",
    metadata,
    # No foreign key: a receiver may start before the query that declares its gate.
    Column("gate", Text, primary_key=True),
    Column("journal_id", Text, primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("journal", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("limit_per_s", Double),
    Column("most_per_s", Double),
    Column("records_per_s", Double, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("buffered_bytes", BigInteger, nullable=False),
    Column("waiting_records", BigInteger, nullable=False),
    Column("refusing", Text),
    # A JSON object: the number of rejections, by kind.
    Column("rejected", Text, nullable=False, server_default="{}"),
)
"""Receivers of a gate's records: one row per lane, updated about once a second."""

signal: Final = Table(
    "signal",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("receiver", Text, primary_key=True),
    Column("sender", Text, primary_key=True),
    Column("body", Text, nullable=False),
    # By the database's clock, because the clocks of the stages' machines may differ.
    Column("written_ms", BigInteger, nullable=False),
)
"""Newest signal from each stage of a flow to the stage directly upstream. Signals are kept until
the upstream stage removes them."""

flow_secret: Final = Table(
    "flow_secret",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("secret", Text, nullable=False),
)
"""Secret of each flow. With it, the flow's stages sign the texts that they store in ZooKeeper,
where other programs can also write."""

stage_state: Final = Table(
    "stage_state",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("written_ms", BigInteger, nullable=False),
)
"""Published state of each stage of a flow."""

output: Final = Table(
    "output",
    metadata,
    Column("topic_id", Text, primary_key=True),
    Column("attempt", Text, primary_key=True),
    # No foreign key: a query of several sources has batches without a row.
    Column("batch_key", Text, nullable=False),
    Column("state", Text, nullable=False),
    # A JSON object, by partition.
    Column("starts", Text, nullable=False),
    Index(None, "topic_id", "batch_key"),
    Index(None, "topic_id", "state"),
    # At most one attempt writes a batch, or has written it.
    Index(
        "one_output",
        "topic_id",
        "batch_key",
        unique=True,
        sqlite_where=text("state <> 'aborted'"),
        postgresql_where=text("state <> 'aborted'"),
    ),
)
"""Attempts of stages to write batches into topics."""
