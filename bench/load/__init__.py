"""Programs that run beside a receiver in their own processes: senders, and a bare receiver.

They use nothing but the standard library, so that they are there at once and take little of the
machine. All of them speak to 127.0.0.1 alone, and end by themselves.
"""
