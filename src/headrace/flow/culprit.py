"""Who is to blame when stages of a flow are held back."""

from collections.abc import Iterable

from headrace.flow.signals import StageState


def culprits(states: Iterable[StageState]) -> list[str]:
    """The stages that hold others back and are not held back themselves, by name.

    Those are what an operator is to look at: a stage that is held back is only passing it on, and
    one that does not run holds nobody for longer than a lease.
    """
    states = list(states)
    free = {state.stage for state in states if state.held_by is None}
    return sorted({state.held_by for state in states if state.held_by is not None} & free)
