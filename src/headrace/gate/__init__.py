"""Rates, the ledger and failures: what stands behind `headrace.Gate`."""
