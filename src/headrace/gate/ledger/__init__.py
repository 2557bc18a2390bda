"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

The plan of a batch is written before the batch is processed, and the outcome afterwards. The
processes of a query share no state but the ledger: Spark runs the planner of a Python source in a
separate process, so planner, driver and executors have no common memory. The ledger also survives a
restart. No value read from the ledger is evaluated, imported or unpickled.
"""
