"""The processes below a process."""

import subprocess


def descendants(root: int) -> list[int]:
    """All processes that this one has started, and those that these have; parents first."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        process, parent = map(int, line.split())
        children.setdefault(parent, []).append(process)
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found[1:]
