"""Make the tables of a ledger.

Nothing is released yet, so they are those of `headrace.gate.ledger.tables` as it stands. The first
release freezes them here; a migration that comes after fails its test until that is done.
"""

from alembic import op

from headrace.gate.ledger.tables import metadata

revision = "0002"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    metadata.create_all(op.get_bind(), checkfirst=False)
