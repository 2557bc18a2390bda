"""The dashboard: the ledger's gates, failures, flows and receivers as web pages that stay live.

Pages are made on the server from the ledger alone, and load nothing from elsewhere. Records, names
and errors are shown as text.
"""

from headrace.core.system import needs_extra

with needs_extra("dashboard", "The dashboard"):
    from headrace.operate.dashboard.app import serve
    from headrace.operate.dashboard.security import DashboardSettings

__all__ = ["DashboardSettings", "serve"]
