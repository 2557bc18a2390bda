"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

The plan of a batch is written to it before the batch is processed, its outcome after. It is also
the only state that the processes of a query share: they have no common memory.
"""
