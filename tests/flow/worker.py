"""A stage in a process of its own: ``python -m tests.flow.worker FLOW STAGE WHERE``."""

import sys

from tests.flow.samples import state_of_stage
from tests.flow.worlds import LedgerWorld, World, ZookeeperWorld
from tests.services.waiting import wait_until


def main(flow: str, stage: str, where: str) -> None:
    """Show a state for as long as there is an input."""
    world: World = (LedgerWorld if "://" in where else ZookeeperWorld)(flow, where)
    with world:
        signals = world.join(stage)
        signals.publish(state_of_stage(stage, flow=flow, lease_ms=3_000))
        wait_until(lambda: stage in signals.states())
        print("shown", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
