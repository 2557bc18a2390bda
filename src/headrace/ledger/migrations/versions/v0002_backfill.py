"""Let a batch have an owner and parts; keep dead letters, what old batches had read, receivers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_row_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns and make the tables."""
    op.add_column("gate", sa.Column("begun", sa.Text()))
    op.add_column("gate", sa.Column("begins", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("control", sa.Column("owner", sa.Text()))
    op.add_column("control", sa.Column("lease_until_ms", sa.BigInteger()))
    op.add_column("control", sa.Column("resolution", sa.Text()))
    op.add_column("control", sa.Column("last_move", sa.Text()))
    op.add_column("control", sa.Column("parent", sa.Text()))
    backfills = sa.Column("backfills", sa.Integer(), nullable=False, server_default="0")
    op.add_column("control", backfills)
    op.add_column(
        "control",
        sa.Column("cut_short", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    # Until now a crash, too, could be why a batch had failed.
    op.execute("UPDATE control SET cut_short = true WHERE status = 'failed'")
    op.create_index("ix_control_parent", "control", ["parent"])
    op.add_column("failure", sa.Column("topic_id", sa.Text()))
    _tell_losses_of_topics_apart()
    _make_dead_letter()
    op.create_table(
        "pruned",
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("until_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "gate", "run_id", "topic", "topic_id", "partition", "start_offset", name="pk_pruned"
        ),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_pruned_gate"),
    )
    _make_position()
    _make_receiver()


def _tell_losses_of_topics_apart() -> None:
    """Put the topic's id into the key; SQLite makes the table anew for it."""
    with op.batch_alter_table("lost") as lost:
        lost.add_column(sa.Column("topic_id", sa.Text(), nullable=False, server_default=""))
        lost.drop_constraint("pk_lost", type_="primary")
        lost.create_primary_key(
            "pk_lost", ["gate", "topic", "partition", "from_offset", "topic_id"]
        )


def _make_dead_letter() -> None:
    op.create_table(
        "dead_letter",
        sa.Column("dead_letter_id", _row_number, nullable=False),
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary()),
        sa.Column("value", sa.LargeBinary()),
        sa.Column("headers", sa.Text()),
        sa.Column("timestamp_ms", sa.BigInteger(), nullable=False),
        sa.Column("timestamp_type", sa.Integer(), nullable=False),
        sa.Column("error_class", sa.Text(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("error_trace", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("resolved_ms", sa.BigInteger()),
        sa.Column("resolution", sa.Text()),
        sa.Column("last_move", sa.Text()),
        sa.PrimaryKeyConstraint("dead_letter_id", name="pk_dead_letter"),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["control.schedule_id"],
            name="fk_dead_letter_schedule_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_dead_letter_gate"),
        sa.UniqueConstraint(
            "schedule_id",
            "topic",
            "partition",
            "offset",
            name="uq_dead_letter_schedule_id_topic_partition_offset",
        ),
    )
    op.create_index(
        "ix_dead_letter_gate_status_dead_letter_id",
        "dead_letter",
        ["gate", "status", "dead_letter_id"],
    )


def _make_position() -> None:
    op.create_table(
        "position",
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("until_offsets", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "gate", name="pk_position"),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_position_gate"),
    )


def _make_receiver() -> None:
    op.create_table(
        "receiver",
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("journal_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("journal", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("limit_per_s", sa.Double()),
        sa.Column("most_per_s", sa.Double()),
        sa.Column("records_per_s", sa.Double(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("buffered_bytes", sa.BigInteger(), nullable=False),
        sa.Column("waiting_records", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gate", "journal_id", "lane", name="pk_receiver"),
    )
