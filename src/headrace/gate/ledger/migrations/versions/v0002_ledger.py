"""Create the tables of a ledger.

Nothing is released yet, so the migration creates the tables of `headrace.gate.ledger.tables`. The
first release must copy these tables here; the test of a later migration fails until that is done.
"""

from alembic import op

from headrace.gate.ledger.tables import metadata

revision = "0002"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    metadata.create_all(op.get_bind(), checkfirst=False)
