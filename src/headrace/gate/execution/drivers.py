"""Codes, names and texts with which database drivers and Java report an unreachable system.

An exception of this process has a code. An exception of a task has its code only in its text. Both
codes are looked up in the same sets. A verdict is True for an unreachable system. It is False for a
reachable system that refuses the request, and for a lost process of Spark. None means no verdict:
the exception's cause may have one.
"""

import errno
import re
import sqlite3
from typing import Final

from confluent_kafka import KafkaError

ERRNOS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
        errno.ENOTCONN,  # also from a FUSE mount whose process has ended
    }
)
"""Codes of an ``OSError`` that report an unreachable, full or broken system.

EACCES counts only if the exception names a path. EMFILE, ENAMETOOLONG and EPERM never count.
"""

HTTP_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504, 529})
"""HTTP status codes of a service that is overloaded, too slow, or unreachable behind a gateway."""

STORE_STATUSES: Final = HTTP_STATUSES | {500}
"""Status codes of an unavailable object store: `HTTP_STATUSES` and 500. Object stores return 500
for internal errors, and ask for a retry (Amazon S3's "Error responses", Google Cloud Storage's
"Retry strategy")."""

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_SQLSTATES: Final = (
    *("08", "530", "531", "532", "533"),  # not 53400: a limit of the statement's own
    *("57P01", "57P02", "57P03", "25006", "58000", "58030"),
)

_POSTGRESQL_AWAY: Final = frozenset(
    {
        *("ConnectionException", "ConnectionDoesNotExist", "ConnectionFailure"),  # 08
        *("SqlclientUnableToEstablishSqlconnection", "TransactionResolutionUnknown"),
        *("SqlserverRejectedEstablishmentOfSqlconnection", "ProtocolViolation"),
        *("InsufficientResources", "DiskFull", "OutOfMemory", "TooManyConnections"),  # 53
        *("AdminShutdown", "CrashShutdown", "CannotConnectNow"),  # 57
        *("ReadOnlySqlTransaction", "SystemError", "IoError"),  # 25006, 58000, 58030
        *("OperationalError", "ConnectionTimeout"),  # without a SQLSTATE: the connection's
    }
)
"""Exception classes that psycopg and psycopg2 raise for `_SQLSTATES`. The text of a task's error
names the class, but not the code."""

# https://dev.mysql.com/doc/mysql-errors/8.4/en/: client 2xxx, server 1xxx.
MYSQL: Final = frozenset({2002, 2003, 2005, 2006, 2013, 2055, 1021, 1040, 1053, 1290, 1836})
MYSQL_DRIVERS: Final = frozenset({"MySQLdb", "aiomysql", "asyncmy", "mariadb", "mysql", "pymysql"})

# https://www.sqlite.org/rescode.html, primary codes
SQLITE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
    }
)
_SQLITE_TEXT: Final = re.compile(
    r"database is locked|unable to open database file|database or disk is full|disk I/O error"
    r"|attempt to write a readonly database"
)

# librdkafka's rdkafka.h; broker codes from https://kafka.apache.org/protocol#protocol_error_codes
KAFKA: Final = frozenset(
    {
        *(KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE),
        *(KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE),
        KafkaError._ISR_INSUFF,
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION),
        *(KafkaError.REQUEST_TIMED_OUT, KafkaError.BROKER_NOT_AVAILABLE),
        *(KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION),
        *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE),
        *(KafkaError.NOT_COORDINATOR, KafkaError.NOT_CONTROLLER),
        *(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        *(KafkaError.KAFKA_STORAGE_ERROR, KafkaError.THROTTLING_QUOTA_EXCEEDED),
    }
)

NETWORK_NAMES: Final = frozenset(
    {
        *("ConnectionError", "TimeoutError"),  # Python, urllib3, botocore, redis, elastic_transport
        *("ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError"),
        *("BrokenPipeError", "RemoteDisconnected", "gaierror", "herror"),
        *("Timeout", "ConnectTimeout", "ReadTimeout", "RetryError", "ChunkedEncodingError"),
        *("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),  # urllib3
        *("NameResolutionError", "ProxyError"),
        *("TimeoutException", "NetworkError", "RemoteProtocolError"),  # httpx, httpcore
        *("ConnectError", "ReadError", "WriteError", "WriteTimeout", "PoolTimeout"),
        *("ClientConnectionError", "ClientConnectorError", "ServerDisconnectedError"),  # aiohttp
        *("ServerTimeoutError", "ConnectionTimeoutError"),
        *("HTTPClientError", "EndpointConnectionError", "ConnectionClosedError"),  # botocore
        *("ConnectionFailure", "AutoReconnect", "ServerSelectionTimeoutError"),  # pymongo
        *("IncompleteRead", "ProtocolError"),  # http.client, urllib3: an answer that broke off
        "NoBrokersAvailable",  # kafka-python
    }
)
"""Names of exceptions, of Python and of client libraries, that have no error code and report an
unreachable system."""

_NOT_REACHED_BY_OURSELVES: Final = frozenset({"multiprocessing", "py4j", "pyspark", "sqlalchemy"})
"""Packages that raise exceptions of `NETWORK_NAMES` about the program's own processes, not a
sink."""

REFUSALS: Final = frozenset(
    {"DataError", "IntegrityError", "NotSupportedError", "ProgrammingError"}
)
"""Names of PEP 249 exceptions from a reachable database that refuses the data."""


# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, and the SDKs' own lists of
# codes to retry; most come with HTTP 400. A service quota, such as LimitExceededException, is not
# included, because it may be permanent.
AWS: Final = frozenset(
    {
        *("503", "SlowDown", "InternalError", "ServiceUnavailable", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
        *("RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException"),
        *("ProvisionedThroughputExceededException", "TransactionInProgressException"),
        *("BandwidthLimitExceeded", "PriorRequestNotComplete", "RequestTimeoutException"),
    }
)


def sqlstate_says(state: str) -> bool:
    """Return whether an SQLSTATE reports an unreachable database."""
    return state.startswith(_SQLSTATES)


def name_says(module: str, name: str) -> bool | None:
    """Return the verdict for the name of an exception class, if the exception has no code."""
    if module.partition(".")[0] in _NOT_REACHED_BY_OURSELVES:
        return None
    if name in REFUSALS:
        return False
    return True if name == "OperationalError" or name in NETWORK_NAMES else None


_MYSQL_TEXT: Final = re.compile(r"\(?(\d{4})(?:, | \(|: )")

_CODES_IN_TEXT: Final[tuple[tuple[str, frozenset[int] | frozenset[str]], ...]] = (
    (r"OSError: \[Errno (\d+)\] ", ERRNOS),
    (r"HTTPError: (\d{3}) (?:Client|Server) Error: ", HTTP_STATUSES),  # requests
    (r"HTTPError: HTTP Error (\d{3}): ", HTTP_STATUSES),  # urllib
    (r"HTTPStatusError: (?:Client|Server) error '(\d{3}) ", HTTP_STATUSES),  # httpx
    (r"ClientResponseError: (\d{3}), message=", HTTP_STATUSES),  # aiohttp
    (r"ClientError: An error occurred \((\w{1,40})\) when calling the \w+ operation", AWS),
    (r"KafkaException: KafkaError\{(?:[A-Z,]+,)?code=\w+,val=(-?\d+),", KAFKA),
)
"""Patterns that find an error code in a text, each with the codes of an unreachable system."""


def python_says(name: str, message: str) -> bool:
    """Return whether a Python exception in the text of a task's error reports an unreachable sink.

    Args:
        name: The exception's class, with its module unless that is ``builtins``.
        message: The exception's message. Only its beginning is read, which the package itself
            writes. The rest may contain values of records.
    """
    module, _, short = name.rpartition(".")
    package = module.partition(".")[0]
    if package in {"psycopg", "psycopg2"}:
        return short in _POSTGRESQL_AWAY
    if package == "sqlite3":
        return short == "OperationalError" and _SQLITE_TEXT.match(message) is not None
    if name == "PermissionError":
        return message.startswith("[Errno 13] ") and "'" in message  # names a path
    if package in MYSQL_DRIVERS and (number := _MYSQL_TEXT.match(message)) is not None:
        return int(number[1]) in MYSQL
    for pattern, away in _CODES_IN_TEXT:
        if (code := re.match(pattern, f"{short}: {message}")) is not None:
            return code[1] in map(str, away)
    return name_says(module, short) is True


_JAVA_AWAY: Final = re.compile(
    r"java\.net\.(?:Connect|Socket|SocketTimeout|UnknownHost|NoRouteToHost|PortUnreachable)Exception"
    r"|java\.net\.http\.Http(?:Connect)?TimeoutException"
    r"|java\.nio\.channels\.UnresolvedAddressException"
    r"|java\.nio\.file\.AccessDeniedException"
    r"|java\.sql\.SQL(?:NonTransientConnection|TransientConnection|Recoverable)Exception"
    r"|org\.apache\.http\.(?:NoHttpResponse|conn\.(?:HttpHostConnect|ConnectTimeout))Exception"
    r"|org\.apache\.hadoop\.net\.ConnectTimeoutException"
    r"|org\.apache\.hadoop\.security\.AccessControlException"
    r"|org\.apache\.hadoop\.ipc\.(?:Standby|Retriable)Exception"
    r"|org\.apache\.hadoop\.hdfs\.server\.namenode\.SafeModeException"
    r"|org\.apache\.hadoop\.hdfs\.protocol\.(?:DS|NS)?QuotaExceededException"
    r"|org\.apache\.hadoop\.fs\.s3a\.AWS(?:ServiceThrottled|Status500)Exception"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable"
    r"|CoordinatorNotAvailable|CoordinatorLoadInProgress|LeaderNotAvailable|NotLeaderOrFollower"
    r"|NotEnoughReplicas|NotEnoughReplicasAfterAppend|KafkaStorage|ThrottlingQuotaExceeded"
    r"|BootstrapResolution)Exception"
)

_OS_TEXT: Final = (
    r"(?:No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
    r"|Stale file handle|Transport endpoint is not connected|Permission denied)"
)
_OUTPUT_TEXT: Final = {
    "java.io.IOException": re.compile(
        rf"{_OS_TEXT}|Mkdirs failed to create \S+"
        r"/_temporary/\d+/_temporary/attempt_\w+ \(exists=.*"
    ),
    "java.io.FileNotFoundException": re.compile(rf".*\({_OS_TEXT}\)", re.DOTALL),
    "java.nio.file.FileSystemException": re.compile(rf".*: {_OS_TEXT}", re.DOTALL),
    "org.apache.hadoop.fs.FSError": re.compile(rf"java\.io\.IOException: {_OS_TEXT}"),
    "org.apache.spark.sql.delta.DeltaIOException": re.compile(
        r"\[DELTA_CANNOT_CREATE_LOG_PATH\].*", re.DOTALL
    ),
    "org.apache.kafka.common.config.ConfigException": re.compile(
        r"No resolvable bootstrap urls given in .*"
    ),
    "org.postgresql.util.PSQLException": re.compile(
        r"Connection to \S+ refused\..*|An I/O error occurred while sending to the backend\."
        r"|FATAL: (?:terminating connection(?! due to [\w-]+ timeout)|the database system is"
        r"|sorry, too many clients|remaining connection slots).*",
        re.DOTALL,
    ),
}
"""Messages that report a full or broken output, for Java classes whose name alone has no verdict.
``Mkdirs failed`` counts only for the folder of a task's attempt: folders below it have values of
partition columns as names, which may be invalid."""

_STORE_TEXT: Final = re.compile(
    r"[^()\n]{0,500}\(Service: [\w ]{1,40}[;,] Status Code: (?P<amazon>\d{3})\b"
    r"|(?:Status code: -?\d+ .{0,80})?Operation failed: \"[^\"\n]{0,500}\", (?P<azure>\d{3}), "
    r"|(?P<google>\d{3}) [A-Z]"
)
_STORES: Final = re.compile(
    r"software\.amazon\.awssdk\..*Exception|com\.amazonaws\..*Exception"
    r"|org\.apache\.hadoop\.fs\.s3a\.AWS\w+Exception"
    r"|org\.apache\.hadoop\.fs\.azurebfs\..*AbfsRestOperationException"
    r"|com\.google\..*GoogleJsonResponseException"
)

_SPARK_LOST: Final = re.compile(
    r"java\.lang\.(?:OutOfMemoryError|InterruptedException)|java\.io\.EOFException"
    r"|java\.nio\.channels\.ClosedByInterruptException"
    r"|org\.apache\.spark\.shuffle\.(?:Metadata)?FetchFailedException"
    r"|org\.apache\.spark\.\w+: (?:Python worker exited unexpectedly|.{0,200}ExecutorLostFailure)"
)
"""Errors of a Spark process that has ended, perhaps because a record crashes its reader."""

_SPARK_LINKS: Final = re.compile(
    r"org\.apache\.spark\.(?:api\.python|sql\.execution\.python|network|rpc)\."
)
"""Stack frames of Spark's connections to its Python workers and between its own processes."""


def java_says(name: str, message: str) -> bool | None:
    """Return the verdict for a Java exception's class and message; None if there is no verdict."""
    if _SPARK_LOST.match(f"{name}: {message}"):
        return False
    if _JAVA_AWAY.fullmatch(name):
        return True
    if _STORES.fullmatch(name) and (status := _STORE_TEXT.match(message)) is not None:
        return int(status[status.lastgroup or 0]) in STORE_STATUSES
    pattern = _OUTPUT_TEXT.get(name)
    return True if pattern is not None and pattern.fullmatch(message) else None


def is_sparks_own_link(frames: str) -> bool:
    """Return whether a Java stack trace is from a connection between Spark's own processes."""
    return _SPARK_LINKS.search(frames) is not None
