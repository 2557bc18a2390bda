"""The ledger's tables, the same on SQLite and PostgreSQL.

Times are ms since the epoch. Leases are by the database's own clock, which all have in common.

The migrations make them; a test holds both against each other. Every query uses an index, so that
none takes longer because there is more history.
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
"""Table of the schema's version; not Alembic's default, so that a database can be shared."""

SCHEMA_VERSION: Final = "0002"
"""The newest migration; versions are ordered as text."""

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the type is exactly INTEGER.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")

gate: Final = Table(
    "gate",
    metadata,
    Column("name", Text, primary_key=True),
    Column("interval_ms", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("estimator", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Made with the row: the checkpoints of its queries carry it, and so know their ledger.
    Column("gate_id", Text, nullable=False),
    Column("rate_per_s", Double),
    Column("rate_time_ms", BigInteger),
    # Known cost of a batch, as the learned law writes it.
    Column("batch_cost", Text),
    # The largest batch that its handler takes, as `SizeCeiling` writes it.
    Column("size_ceiling", Text),
    # The batch that its newest rate sample was learnt from.
    Column("reported", Text),
    # The batch that the engine asked for last, and how often it has asked for any. No foreign key,
    # which SQLite adds to no table that is there.
    Column("begun", Text),
    Column("begins", BigInteger, nullable=False, server_default="0"),
    # Rate limit set by a downstream stage in its flow, and its expiry by the database's clock.
    Column("throttle_per_s", Double),
    Column("throttled_by", Text),
    Column("throttle_level", Double),
    Column("throttle_origin_per_s", Double),
    Column("throttle_until_ms", BigInteger),
    # Pressures that its stage has received from downstream; a restart continues with them.
    Column("pressures", Text),
    # The query that stands behind it, and until when by the database's clock; no
    # other one begins a batch meanwhile.
    Column("query_owner", Text),
    Column("query_driver", Text),
    Column("query_read", Text),
    Column("query_described", Text),
    Column("query_checkpoint", Text),
    Column("query_checkpoint_id", Text),
    Column("query_since_ms", BigInteger),
    Column("query_until_ms", BigInteger),
    # `begins` when that query claimed the gate.
    Column("query_begins", BigInteger),
    # Time by the database's clock when its last query ended, the way (`QueryEnd`), and the error if
    # it was one. Empty for a query that owns it now, or whose process died silently.
    Column("ended_ms", BigInteger),
    Column("ended", Text),
    Column("ended_error", Text),
    # Number of calls of its handler.
    Column("sequence", BigInteger, nullable=False, server_default="0"),
    # Total offsets of its losses, to detect a loss that was deleted.
    Column("lost_offsets", BigInteger, nullable=False, server_default="0"),
    # Operators' settings in force, rows of `action`: a pause or a drain, a limit, and a
    # stop of the query that has it; and the newest of its rows. No foreign keys: SQLite cannot add
    # them to an existing table.
    Column("hold_action", BigInteger),
    Column("limit_action", BigInteger),
    Column("stop_action", BigInteger),
    Column("last_action", BigInteger),
    # While its batch waits for its sink: the outage (`SinkOutage`), and when an operator asked that
    # it be run at once.
    Column("sink_outage", Text),
    Column("sink_retry_ms", BigInteger),
    # Totals of batches that are deleted as old, by status and reason, as metrics read them.
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
    # The id that an `adopt` names, or the failures that it is about, in words.
    Column("target", Text),
    # Of an action on failures; null while it is being done, or if that was interrupted.
    Column("outcome", Text),
    # When the gate's planner first planned by it, or by its successor.
    Column("seen_ms", BigInteger),
    Column("last_call", Text, nullable=False, unique=True),
    Index(None, "gate", "action_id"),
)
"""Operators' actions, on gates and on failures: one row an action, never deleted."""

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
    # About how many bytes they are, where the records' sizes were measured.
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
    # The call that changed it last: one that is repeated, as its answer was lost, finds itself.
    Column("last_call", Text),
    # Number of attempts that are failed backfills.
    Column("backfills", Integer, nullable=False, server_default="0"),
    # Whether the outcome of one of its runs is unknown: it may be in its sink.
    Column("outcome_unknown", Boolean, nullable=False, server_default=false()),
    # When an operator asked that its next backfill be not waited for.
    Column("retry_ms", BigInteger),
    # A JSON object (`control.parts.Progress`): what was done of a batch that is run in parts.
    Column("progress", Text),
    # Number of offsets that are done by it.
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
"""Named for what needs it: it is written before anything has failed."""

lost: Final = Table(
    "lost",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("from_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    # "" where it is not known, for a key has no nulls.
    Column("topic_id", Text, primary_key=True, server_default=""),
    # The batch that could not read it; "" where it was gone before one was planned.
    Column("batch_key", Text, primary_key=True, server_default="", index=True),
    Column("reason", Text),
)

accepted: Final = Table(
    "accepted",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" where it is not known, for a key has no nulls.
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("from_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
)
"""Lost or skipped offsets that an operator accepts as unprocessed, with the reason."""

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
    # Until then only the process of the last call sends it again.
    Column("claimed_until_ms", BigInteger),
    Column("last_call", Text),
    UniqueConstraint("batch_key", "topic", "partition", "offset"),
    Index(None, "gate", "status", "dead_letter_id"),
)
"""Records that cannot be processed, kept whole."""

pruned: Final = Table(
    "pruned",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" where it is not known, for a key has no nulls.
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("start_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
)
"""Ranges of batches that were deleted as old: neighbouring ranges are one row."""

checkpoint: Final = Table(
    "checkpoint",
    metadata,
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    # "" where it is not known, for a key has no nulls.
    Column("topic_id", Text, primary_key=True),
    # JSON objects, by partition: where its first batch began and its newest one ended.
    Column("start_offsets", Text, nullable=False),
    Column("until_offsets", Text, nullable=False),
    # Number of offsets that its batches have planned.
    Column("offsets", BigInteger, nullable=False),
    # The batch that the engine asked for last, and how often it had asked the gate for any.
    Column("begun", Text),
    Column("begins", BigInteger, nullable=False),
)
"""Ranges planned by each checkpoint, which its batches are checked against; they outlive them."""

position: Final = Table(
    "position",
    metadata,
    Column("topic_id", Text, primary_key=True),
    Column("gate", Text, ForeignKey("gate.name"), primary_key=True),
    Column("checkpoint_id", Text, nullable=False),
    # A JSON object, by partition: every batch writes it, and one row costs less than a hundred.
    Column("until_offsets", Text, nullable=False),
)
"""Position of a gate's newest run in a topic or journal that has an id. It outlives the batches,
all of which would have to be searched for a partition without new records for long."""

receiver: Final = Table(
    "receiver",
    metadata,
    # No foreign key: a receiver may be there before the query that declares its gate.
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
    # A JSON object: how many, by kind.
    Column("rejected", Text, nullable=False, server_default="{}"),
)
"""Receivers of a gate's records, one row a lane, rewritten about once a second."""

signal: Final = Table(
    "signal",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("receiver", Text, primary_key=True),
    Column("sender", Text, primary_key=True),
    Column("body", Text, nullable=False),
    # By the database's clock, for the stages may be on machines whose clocks differ.
    Column("written_ms", BigInteger, nullable=False),
)
"""Newest signal of a flow's stage to one directly before it, until that one takes it."""

flow_secret: Final = Table(
    "flow_secret",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("secret", Text, nullable=False),
)
"""Secret of each flow, by which its stages sign what they write where others may write, too."""

stage_state: Final = Table(
    "stage_state",
    metadata,
    Column("flow", Text, primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("written_ms", BigInteger, nullable=False),
)
"""State that each stage of a flow publishes."""

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
"""The attempts of stages to write batches into topics."""
