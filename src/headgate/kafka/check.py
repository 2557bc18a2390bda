"""What can be known to be wrong before a query starts."""

from collections.abc import Mapping

from headgate.kafka.lookup import Lookup
from headgate.kafka.options import parse_options
from headgate.kafka.subscription import Cluster


def check_stream(options: Mapping[str, str]) -> None:
    """Check a stream's options and reach its brokers, on the driver.

    Spark finds either only when the query runs, and wraps it in a traceback.

    Raises:
        OptionError: an option is wrong.
        BrokerError: the brokers cannot be reached.
        SourceError: a topic or partition that is named does not exist.
    """
    parsed = parse_options(options, streaming=True)
    lookup = Lookup(
        parsed.client, parsed.fetch_offset_retries, parsed.fetch_offset_retry_interval_ms
    )
    Cluster(parsed.subscription, lookup).topics(must_exist=True)
