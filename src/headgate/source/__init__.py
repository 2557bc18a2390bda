"""What every source shares: it plans batches of a `Log` under a gate, and shows them to Spark."""

from headgate.source.connector import Connector
from headgate.source.log import Log, Topic
from headgate.source.planner import StreamPlanner
from headgate.source.positions import Positions, StreamOffset

__all__ = ["Connector", "Log", "Positions", "StreamOffset", "StreamPlanner", "Topic"]
