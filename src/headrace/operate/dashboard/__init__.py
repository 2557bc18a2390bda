"""The dashboard: live web pages of a ledger's gates, failures, flows and receivers.

The server renders the pages, which load nothing from other hosts. Records, names and errors are
shown as text, never as HTML.
"""

from headrace.core.system import needs_extra

with needs_extra("dashboard", "The dashboard"):
    from headrace.operate.dashboard.app import serve
    from headrace.operate.dashboard.security import DashboardSettings

__all__ = ["DashboardSettings", "serve"]
