"""``python -m tests.planted``: plants each defect, and says which test finds it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tests.planted.plant import report
from tests.planted.table import chosen

_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 1 if a defect is not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted",
        description="Plant each defect into a copy of src, and run the tests that must find it.",
    )
    parser.add_argument(
        "-k", metavar="WORD", default="", help="only the defects that have WORD in their row"
    )
    parser.add_argument("--list", action="store_true", help="list the defects, and run nothing")
    options = parser.parse_args(arguments)
    defects = chosen(options.k)
    if not defects:
        parser.error(f"no defect has {options.k!r} in its row")
    if options.list:
        sys.stdout.writelines(f"{each.module}: {each.what}\n" for each in defects)
        return 0
    try:
        return 0 if report(defects) else 1
    except KeyboardInterrupt:
        sys.stdout.write("Interrupted.\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
