"""What operators see and do: commands, dashboard, status, metrics, local services."""
