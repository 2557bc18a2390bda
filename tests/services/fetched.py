"""Everything that tests run and no lock file has: ``python -m tests.services.fetched`` fetches it.

It has its place in the cache, or in the environment, and is fetched once, so that the tests
themselves need no network.
"""

import shutil
import subprocess
import sys

from tests.services import debian, object_stores, wheels
from tests.services.connector import connector_jars, jdbc_jars
from tests.services.hdfs import hdfs_jars
from tests.services.lakes import delta_jars

from headrace.errors import SetupError
from headrace.operate.local import ensure_java


def main() -> int:
    """Fetch what is missing; the exit status is 1 if that fails."""
    try:
        java = ensure_java()
        for jars in (connector_jars, hdfs_jars, delta_jars, jdbc_jars):
            jars(java, _say)
        _say("Making wheels for the test of the installation, of what pip has in its cache")
        wheels.make_wheels()
        object_stores.azurite(_say)
        _fetch_programs()
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout or "").strip().splitlines() or ["nothing"]
        sys.stderr.write(
            f"{' '.join(map(str, error.cmd[:4]))} failed ({words[-1]}); run make again, with a"
            " network, or as root where it asks for that.\n"
        )
    else:
        return 0
    return 1


def _fetch_programs() -> None:
    missing = debian.missing()
    if not missing:
        return
    if not shutil.which("apt-get"):
        _say(f"Install {', '.join(missing)}: without them the tests that run them fail.")
        return
    _say(f"Unpacking {', '.join(missing)} from Debian's packages into the cache")
    for name in missing:
        debian.program(name)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
