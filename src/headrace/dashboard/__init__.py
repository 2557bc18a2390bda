"""The dashboard: the ledger's gates, failures, flows and receivers as web pages that stay live.

Pages are made on the server from the ledger alone, and load nothing from elsewhere. Whatever a
record, a name or an error says is shown as text.
"""

from headrace.dashboard.server import serve
from headrace.dashboard.settings import DashboardSettings

__all__ = ["DashboardSettings", "serve"]
