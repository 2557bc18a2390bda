"""``python -m bench.load <what> <JSON of its arguments>``: answers as JSON, in one line."""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from bench.load import bare, gates, half_open, lines, posts, produced, stages

WHAT: Final[dict[str, Callable[..., Any]]] = {
    "lines.all_at_once": lines.all_at_once,
    "lines.at_a_pace": lines.at_a_pace,
    "lines.without_pause": lines.without_pause,
    "posts.all_at_once": posts.all_at_once,
    "posts.at_a_pace": posts.at_a_pace,
    "posts.without_pause": posts.without_pause,
    "produced.all_at_once": produced.all_at_once,
    "half_open.hold": half_open.hold,
    "bare.receive": bare.receive,
    "stages.take_part": stages.take_part,
    "gates.drive": gates.drive,
}

if __name__ == "__main__":
    what, arguments = sys.argv[1:]
    print(json.dumps(WHAT[what](**json.loads(arguments))), flush=True)
