"""Print the table of some kinds: ``python -m tests.receivers.zoo http 'slow' --copies 1,64``."""

import argparse
import tempfile
from pathlib import Path

from tests.receivers.zoo.hostile import names
from tests.receivers.zoo.observing import MIB, table, zoo
from tests.receivers.zoo.record import quantile_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("protocol", choices=["http", "tcp", "tls", "mqtt"])
    parser.add_argument("parts", nargs="*", default=[""])
    parser.add_argument("--copies", default="1,8,64")
    parser.add_argument("--s", type=float, default=6)
    parser.add_argument("--rest-s", type=float, default=5)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, zoo(given.protocol, Path(folder)) as it:
        for kind in names(given.protocol):
            if not any(part in kind for part in given.parts):
                continue
            for copies in map(int, given.copies.split(",")):
                row = it.watch(
                    kind, copies, given.s, given.rest_s if copies > 1 else given.rest_s / 2
                )
                rows.append(row)
                print(
                    f"{kind:40} {copies:3} visits {row.visits:6} peak {row.peak_bytes / MIB:6.0f}"
                    f" after {row.after_bytes / MIB:5.0f} alone {len(row.alone):4}"
                    f" {quantile_s(row.alone, 0.5) * 1e3:6.1f} {quantile_s(row.alone) * 1e3:6.1f}"
                    f" beside {len(row.beside):4} {quantile_s(row.beside, 0.5) * 1e3:6.1f}"
                    f" {quantile_s(row.beside) * 1e3:6.1f} ratio {row.ratio:5.1f}",
                    flush=True,
                )
        for problem in it.end():
            print(problem)
    print(table(rows))


if __name__ == "__main__":
    main()
