"""The browser of the tests, which asks for nothing but their own pages."""

from typing import Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
"""Programs that will do, the first that is there."""

OFFLINE: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""With these it looks up nothing by itself."""
