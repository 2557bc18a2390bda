"""Records over TCP, as lines."""

from headrace.receivers.tcp.tcp_receiver import TcpReceiver

__all__ = ["TcpReceiver"]
