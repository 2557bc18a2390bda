"""A stage in a process of its own: ``python -m tests.flow.worker FLOW STAGE WHERE``."""

import select
import sys

from tests.flow.samples import state_of_stage
from tests.flow.worlds import BRIEF_SESSION_S, LedgerWorld, World, ZookeeperWorld
from tests.services.waiting import wait_until


def main(flow: str, stage: str, where: str) -> None:
    """Show a state for as long as there is an input."""
    world: World
    if "://" in where:
        world = LedgerWorld(flow, where)
    else:
        world = ZookeeperWorld(flow, where, session_timeout_s=BRIEF_SESSION_S)
    with world:
        signals = world.join(stage)

        def shows() -> bool:
            signals.publish(state_of_stage(stage, flow=flow, lease_ms=3_000))
            return stage in signals.states()

        wait_until(shows)
        print("shown", flush=True)  # noqa: T201
        while not select.select([sys.stdin], [], [], 0.5)[0]:
            shows()


if __name__ == "__main__":
    main(*sys.argv[1:])
