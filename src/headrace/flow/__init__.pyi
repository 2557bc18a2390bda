from headrace.flow.flow import Flow as Flow
from headrace.flow.kafka_channel import kafka as kafka
from headrace.flow.ledger_transport import (
    ledger_signals as ledger_signals,
    ledger_states as ledger_states,
)
from headrace.flow.running import (
    RunningFlow as RunningFlow,
    reader_options as reader_options,
    writing_handler as writing_handler,
)
from headrace.flow.signal_codec import StageState as StageState, bottlenecks as bottlenecks
from headrace.flow.stage import Stage as Stage, ZookeeperSettings as ZookeeperSettings
from headrace.flow.stage_signals import Signals as Signals
from headrace.flow.zookeeper_session import ZookeeperSession as ZookeeperSession
from headrace.flow.zookeeper_transport import zookeeper_signals as zookeeper_signals
from headrace.gate import HopSettings as HopSettings

__all__: list[str]
