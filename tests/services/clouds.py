"""Stand-ins for the packages with which clouds sign tokens; none of them is installed here."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

LIFE_S = 900.0


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    return module


def _google_credentials() -> Any:
    credentials = SimpleNamespace(token=None, expiry=None, service_account_email="me@example.com")

    def refresh(_request: object) -> None:
        credentials.token = "hunter2"  # noqa: S105
        # Google's library has times of UTC without a zone.
        credentials.expiry = (datetime.now(UTC) + timedelta(seconds=LIFE_S)).replace(tzinfo=None)

    credentials.refresh = refresh
    return credentials


@contextmanager
def stubbed() -> Iterator[None]:
    """Have AWS's, Google's and Azure's packages imported from here, with their own signatures."""
    provider = SimpleNamespace(
        generate_auth_token=lambda _region: ("hunter2", int((time.time() + LIFE_S) * 1000))
    )
    fetched = SimpleNamespace(token="hunter2", expires_on=int(time.time() + LIFE_S))  # noqa: S106
    requests = _module("google.auth.transport.requests", Request=object)
    transport = _module("google.auth.transport", requests=requests)
    auth = _module(
        "google.auth",
        default=lambda scopes: (_google_credentials(), None),
        transport=transport,
    )
    modules = [
        _module("aws_msk_iam_sasl_signer", MSKAuthTokenProvider=provider),
        *(_module("google", auth=auth), auth, transport, requests, _module("azure")),
        _module(
            "azure.identity",
            DefaultAzureCredential=lambda: SimpleNamespace(get_token=lambda _scope: fetched),
        ),
    ]
    with patch.dict(sys.modules, {module.__name__: module for module in modules}):
        yield
