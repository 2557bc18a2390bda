"""Keep what the stages of a flow tell each other, and how hard they hold their gates."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables and the columns."""
    op.add_column("gate", sa.Column("held_per_s", sa.Double()))
    op.add_column("gate", sa.Column("held_by", sa.Text()))
    op.add_column("gate", sa.Column("held_level", sa.Double()))
    op.add_column("gate", sa.Column("held_origin_per_s", sa.Double()))
    op.add_column("gate", sa.Column("held_until_ms", sa.BigInteger()))
    op.add_column("gate", sa.Column("pressures", sa.Text()))
    op.create_table(
        "signal",
        sa.Column("flow", sa.Text(), nullable=False),
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("written_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("flow", "receiver", "sender", name="pk_signal"),
    )
    op.create_table(
        "stage_state",
        sa.Column("flow", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("written_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("flow", "stage", name="pk_stage_state"),
    )
    op.create_table(
        "output",
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Text(), nullable=False),
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("starts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "attempt", name="pk_output"),
    )
    op.create_index("ix_output_topic_id_schedule_id", "output", ["topic_id", "schedule_id"])
    op.create_index("ix_output_topic_id_state", "output", ["topic_id", "state"])
    one = sa.text("state <> 'given_up'")
    op.create_index(
        "one_output",
        "output",
        ["topic_id", "schedule_id"],
        unique=True,
        sqlite_where=one,
        postgresql_where=one,
    )
