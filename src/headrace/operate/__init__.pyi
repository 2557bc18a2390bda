from headrace.operate.cli import main as main
from headrace.operate.status.observer import Observer as Observer
from headrace.operate.status.snapshot import GateSnapshot as GateSnapshot

__all__: list[str]
