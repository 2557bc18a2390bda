"""``python -m headrace.local`` fetches the broker's jars, so that no test or demo has to wait."""

import sys

from headrace.errors import SetupError
from headrace.local.java import find_java, kafka_server_jars


def main() -> int:
    """Fetch what is missing; the exit status is 1 if that fails."""
    try:
        kafka_server_jars(find_java(), _say)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
