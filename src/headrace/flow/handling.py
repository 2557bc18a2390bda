"""What a stage does with a batch, in its own query or by hand: how it reads, and what it writes."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import OptionError
from headrace.execution import Batch
from headrace.flow.declaration import Declaration
from headrace.flow.stage import Stage
from headrace.ledger import Ledger


def options_of(flow: Declaration, stage: Stage) -> dict[str, str]:
    """The options of the stage's reader: from the earliest record on, where nothing else is said.

    Raises:
        HeadraceError: the channel cannot be reached.
    """
    channel = flow.graph.links[stage.reads].channel
    return {"startingOffsets": "earliest"} | dict(stage.options) | channel.reading(flow.ledger)


def handler_of(
    flow: Declaration, stage: Stage, ledger: Ledger
) -> Callable[[DataFrame, Batch], None]:
    """The stage's handler, with what it answers written to its channels."""
    links = flow.graph.links

    def handle(df: DataFrame, batch: Batch) -> None:
        for name, made in outputs(stage, stage.handler(df, batch)).items():
            links[name].channel.write(made, batch, ledger)

    return handle


def outputs(stage: Stage, made: Any) -> dict[str, DataFrame]:
    """What a stage's handler answered, by the channel that it is for.

    Raises:
        OptionError: It does not go with the channels that the stage writes.
    """
    if made is None and not stage.writes:
        return {}
    if isinstance(made, DataFrame) and len(stage.writes) == 1:
        return {stage.writes[0]: made}
    found = dict(made) if isinstance(made, Mapping) else {}
    if set(found) != set(stage.writes) or not found:
        raise OptionError(
            f"{stage} has answered {_described(made)}; {_wanted(stage)}, as its declaration says."
        )
    for name, df in found.items():
        if not isinstance(df, DataFrame):
            raise OptionError(
                f"{stage} has answered {_described(df)} for the channel {name!r}; it must be a"
                " DataFrame."
            )
    return found


def _described(made: object) -> str:
    if isinstance(made, Mapping):
        return f"a mapping with the names {sorted(map(str, made))}"
    return "nothing" if made is None else f"a value of type {type(made).__name__}"


def _wanted(stage: Stage) -> str:
    if not stage.writes:
        return "it must answer None, for it writes no channel"
    if len(stage.writes) == 1:
        return f"it must answer a DataFrame, for it writes the channel {stage.writes[0]!r}"
    return f"it must answer a DataFrame for each of {list(stage.writes)}, by name"
