"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

The plan of a batch is written before the batch is processed, and its outcome afterwards. The ledger
is the only state that the processes of a query share. Spark runs a Python source's planner in a
process of its own, so planner, driver and executors have no common memory. The ledger also survives
a restart. No value read from the ledger is evaluated, imported or unpickled.
"""
