from headrace.operate.cli import main as main
from headrace.operate.status.moment import snapshots as snapshots
from headrace.operate.status.snapshot import GateSnapshot as GateSnapshot

__all__: list[str]
