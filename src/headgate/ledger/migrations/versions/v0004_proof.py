"""Keep which query stands behind a gate, the number of each run, and which batch lost an offset."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("gate", sa.Column("query_owner", sa.Text()))
    op.add_column("gate", sa.Column("query_driver", sa.Text()))
    op.add_column("gate", sa.Column("query_read", sa.Text()))
    op.add_column("gate", sa.Column("query_described", sa.Text()))
    op.add_column("gate", sa.Column("query_checkpoint", sa.Text()))
    op.add_column("gate", sa.Column("query_run_id", sa.Text()))
    op.add_column("gate", sa.Column("query_since_ms", sa.BigInteger()))
    op.add_column("gate", sa.Column("query_until_ms", sa.BigInteger()))
    op.add_column("gate", sa.Column("query_begins", sa.BigInteger()))
    op.add_column(
        "gate", sa.Column("sequence", sa.BigInteger(), nullable=False, server_default="0")
    )
    _tell_losses_of_batches_apart()


def _tell_losses_of_batches_apart() -> None:
    """Put the batch into the key of a loss; SQLite makes the table anew for it."""
    with op.batch_alter_table("lost") as lost:
        lost.add_column(sa.Column("schedule_id", sa.Text(), nullable=False, server_default=""))
        lost.add_column(sa.Column("reason", sa.Text()))
        lost.drop_constraint("pk_lost", type_="primary")
        lost.create_primary_key(
            "pk_lost", ["gate", "topic", "partition", "from_offset", "topic_id", "schedule_id"]
        )
    op.create_index("ix_lost_schedule_id", "lost", ["schedule_id"])
