"""Every Python of the tests begins with this; a planner of the shared Spark becomes a fork.

Such a process would import for most of a second what `tests.services.forks` has already. It hands
over what it was started with, and stands for its fork until that has ended.
"""

import os
import sys

_PLANNER = ["-m", "pyspark.sql.streaming.python_streaming_source_runner"]

if "HEADRACE_TESTS_FORKS" in os.environ and sys.orig_argv[1:] == _PLANNER:
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["HEADRACE_TESTS_FORKS"])
        ended, ends = os.pipe()
        socket.send_fds(server, [b"?"], [0, 1, 2, ends])
        folder = os.getcwd()  # noqa: PTH109  (what is imported here takes each planner its time)
        started_with = {
            "module": _PLANNER[1],
            "environ": dict(os.environ),
            "folder": folder,
            "path": [folder, *sys.path],
        }
        server.sendall(json.dumps(started_with).encode() + b"\n")
        os.close(ends)
        status = os.read(ended, 1)  # Nothing comes where it was killed.
    os._exit(status[0] if status else 1)
