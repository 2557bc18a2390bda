"""``python -m tests.slowest``: where the time of the last `make test` went.

It reads the files that `make test` and `make nightly` write, and prints the slowest tiers, folders,
modules, tests, fixtures and waits. Seconds are added over the workers, of which four run at once.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.services.durations import PHASES, ROOT

FILES: Final = ("build/durations.json", "build/durations-nightly.json")


def tables(tests: dict[str, dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return the seconds of each tier, folder, module, test, fixture and wait."""
    result: dict[str, Counter[str]] = {
        name: Counter() for name in ("tier", "folder", "module", "test", "fixture", "wait")
    }

    def add(table: str, name: str, seconds: float) -> None:
        result[table][name] += seconds  # type: ignore[assignment]

    for node, test in tests.items():
        seconds = sum(test.get(phase, 0.0) for phase in PHASES)
        module = node.partition("::")[0]
        add("tier", test["tier"], seconds)
        add("folder", str(Path(module).parent), seconds)
        add("module", module, seconds)
        add("test", node.partition("[")[0], seconds)
        for kind in ("fixture", "wait"):
            for name, took_s in test.get(f"{kind}s", {}).items():
                add(kind, name, took_s)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status is 1 where no file was written yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.slowest", description=__doc__)
    parser.add_argument("--rows", type=int, default=25, help="rows of each table (default: 25)")
    parser.add_argument("files", nargs="*", type=Path, help="by default those of the last runs")
    chosen = parser.parse_args(arguments)
    files = chosen.files or [ROOT / name for name in FILES if (ROOT / name).exists()]
    if not files:
        sys.stdout.write("No durations are there yet; run `make test` first.\n")
        return 1
    for file in files:
        written = json.loads(file.read_text())
        tests = written["tests"]
        sys.stdout.write(f"{file}: {len(tests)} tests in {written['took_s']:.0f} s\n")
        for table, seconds in tables(tests).items():
            sys.stdout.write(f"\n{sum(seconds.values()):8.1f} s by {table}\n")
            for name, took_s in seconds.most_common(chosen.rows):
                sys.stdout.write(f"{took_s:8.1f} s  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
