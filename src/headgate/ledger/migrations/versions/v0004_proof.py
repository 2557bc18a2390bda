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
    op.add_column("lost", sa.Column("schedule_id", sa.Text()))
    op.add_column("lost", sa.Column("reason", sa.Text()))
