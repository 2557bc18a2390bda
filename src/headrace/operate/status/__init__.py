"""Views and actions of operators, from the ledger: the commands and the dashboard share them."""
