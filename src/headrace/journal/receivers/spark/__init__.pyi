from headrace.journal.receivers.spark.spark_receivers import (
    HostedReceivers as HostedReceivers,
    Receivers as Receivers,
)
from headrace.journal.receivers.spark.supervisor import (
    HostedState as HostedState,
    ReceiverStatus as ReceiverStatus,
)

__all__: list[str]
