"""State of gates and actions of operators, which the commands and the dashboard share."""
