"""Make the ledger's first tables: gates and rates, batches and their ranges, losses."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_row_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "gate",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("interval_ms", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("estimator", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("rate_per_s", sa.Double()),
        sa.Column("rate_time_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("name", name="pk_gate"),
    )
    _make_rate()
    _make_control()
    _make_failure()
    op.create_table(
        "lost",
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("from_offset", sa.BigInteger(), nullable=False),
        sa.Column("until_offset", sa.BigInteger(), nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gate", "topic", "partition", "from_offset", name="pk_lost"),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_lost_gate"),
    )


def _make_rate() -> None:
    op.create_table(
        "rate",
        sa.Column("rate_id", _row_number, nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("rate_per_s", sa.Double()),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("processing_delay_ms", sa.BigInteger(), nullable=False),
        sa.Column("scheduling_delay_ms", sa.BigInteger(), nullable=False),
        sa.Column("processing_rate_per_s", sa.Double()),
        sa.Column("proportional", sa.Double()),
        sa.Column("integral", sa.Double()),
        sa.Column("derivative", sa.Double()),
        sa.Column("query_batch_id", sa.BigInteger()),
        sa.Column("schedule_id", sa.Text()),
        sa.PrimaryKeyConstraint("rate_id", name="pk_rate"),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_rate_gate"),
    )
    op.create_index("ix_rate_gate_time_ms", "rate", ["gate", "time_ms"])


def _make_control() -> None:
    op.create_table(
        "control",
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("query_batch_id", sa.BigInteger()),
        sa.Column("created_time_ms", sa.BigInteger(), nullable=False),
        sa.Column("start_time_ms", sa.BigInteger()),
        sa.Column("end_time_ms", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("planned_records", sa.BigInteger(), nullable=False),
        sa.Column("lag", sa.BigInteger()),
        sa.Column("rate_per_s", sa.Double()),
        sa.Column("records", sa.BigInteger()),
        sa.Column("error_class", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_trace", sa.Text()),
        sa.PrimaryKeyConstraint("schedule_id", name="pk_control"),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_control_gate"),
    )
    op.create_index("ix_control_gate_created_time_ms", "control", ["gate", "created_time_ms"])
    op.create_index(
        "ix_control_gate_status_created_time_ms", "control", ["gate", "status", "created_time_ms"]
    )


def _make_failure() -> None:
    op.create_table(
        "failure",
        sa.Column("failure_id", _row_number, nullable=False),
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("until_offset", sa.BigInteger(), nullable=False),
        sa.Column("bootstrap_servers", sa.Text(), nullable=False),
        sa.Column("latest_offset", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("failure_id", name="pk_failure"),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["control.schedule_id"],
            name="fk_failure_schedule_id",
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint(
            "schedule_id",
            "topic",
            "partition",
            "start_offset",
            name="uq_failure_schedule_id_topic_partition_start_offset",
        ),
    )
