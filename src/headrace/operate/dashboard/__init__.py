"""The dashboard: gates, failures, flows and receivers of a ledger as live web pages.

The server renders the pages, which load nothing from other hosts. Records, names and errors appear
as text.
"""

from headrace.core.system import needs_extra

with needs_extra("dashboard", "The dashboard"):
    from headrace.operate.dashboard.app import serve
    from headrace.operate.dashboard.security import DashboardSettings

__all__ = ["DashboardSettings", "serve"]
