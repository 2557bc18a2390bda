"""What operators are shown and do, from the ledger: the commands and the dashboard share it."""
