"""What runs beside a receiver in processes of their own: senders, and a bare receiver.

They use nothing but the standard library, so that they are there at once and take little of the
machine. All of them speak to 127.0.0.1 alone, and end by themselves.
"""
