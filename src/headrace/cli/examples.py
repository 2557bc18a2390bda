"""Examples of each command, which stand below its options in ``--help``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "": ("headrace status", "headrace why orders", "headrace failures --since 2h"),
        "demo": ("headrace demo",),
        "up": ("headrace up", "headrace up --topic orders --without postgresql"),
        "status": ("headrace status --watch", "headrace status --gate orders --json"),
        "why": ("headrace why orders", "headrace why orders --batch 1234"),
        "dashboard": ("headrace dashboard --ledger postgresql://headrace@db/headrace",),
        "pause": ('headrace pause orders --why "sink migration"',),
        "resume": ("headrace resume orders", "headrace resume --flow shop.flows:orders"),
        "limit": ("headrace limit 200 orders --for 2h", "headrace limit off orders"),
        "drain": ("headrace drain orders --timeout 5min",),
        "retry": ('headrace retry orders --why "the database is back"',),
        "metrics": ("headrace metrics --per-partition", "headrace metrics --rules"),
        "batches": (
            "headrace batches --gate orders --since 2h",
            "headrace batches 1a2b3c4d",
            "headrace batches --status failed --status dead --watch",
        ),
        "failures": ("headrace failures --gate orders --since 2h --error ValueError",),
        "dead-letters": ("headrace dead-letters list --gate orders",),
        "dead-letters list": ("headrace dead-letters list --gate orders --since 2h --json",),
        "dead-letters export": ("headrace dead-letters export --gate orders",),
        "dead-letters drop": ('headrace dead-letters drop 17 --reason "a test order"',),
        "dead-letters send": ("headrace dead-letters send 17", "headrace dead-letters send --all"),
        "verify": ("headrace verify --gate orders --checkpoint ckpt/orders",),
        "accept": ('headrace accept orders --records 150 --why "begun anew on purpose"',),
        "backfill": (
            "headrace backfill --handler shop.orders:write --all --dry-run",
            "headrace backfill 1a2b3c4d --handler shop.orders:write",
        ),
        "drop": ('headrace drop 1a2b3c4d --reason "processed manually"',),
        "prune": ("headrace prune --older-than '30 days'",),
        "receive": ("headrace receive http --journal /data/orders --lane 0 --gate orders",),
        "receive http": (
            "headrace receive http --journal /data/orders --lane 0 --gate orders --port 8080",
        ),
        "receive tcp": ("headrace receive tcp --journal /data/orders --lane 0 --port 5140",),
        "receive mqtt": (
            "headrace receive mqtt --journal /data/orders --url mqtt://broker --topic 'orders/#'",
        ),
        "send": ("headrace send http://127.0.0.1:8080/records --records 100000",),
        "journal": ("headrace journal ls /data/orders",),
        "journal ls": ("headrace journal ls /data/orders --lane 0",),
        "journal verify": ("headrace journal verify /data/orders",),
        "journal repair": ("headrace journal repair /data/orders",),
        "journal prune": ("headrace journal prune /data/orders --older-than '7 days' --dry-run",),
        "checkpoint": ("headrace checkpoint export ckpt/orders --starting-offsets",),
        "checkpoint export": ("headrace checkpoint export ckpt/orders --to ckpt/orders-native",),
        "flow": ("headrace flow show shop.flows:orders",),
        "flow show": ("headrace flow show shop.flows:orders",),
        "flow run": ("headrace flow run shop.flows:orders --stage parse",),
        "simulate": ("headrace simulate scenario.toml --law learned",),
        "doctor": ("headrace doctor --ledger postgresql://headrace@db/headrace",),
    }
)


def epilog_of(words: str) -> str | None:
    """What stands below the options of a command, named by its words after ``headrace``."""
    examples = EXAMPLES.get(words)
    if examples is None:
        return None
    title = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join([title, *(f"  {each}" for each in examples)])
