"""What a receiver is, for those who write their own."""

from typing import Protocol

from headrace.receivers.intake import Intake


class Receiver(Protocol):
    """Takes records from senders of one kind and hands them to an intake.

    What it must do, and all it must do: hand in what it was sent, and tell the sender that it came
    only when the intake has answered. While the intake lets it wait it must not read on, so that
    the sender waits too. ::

        class Numbers:
            async def receive(self, intake: Intake) -> None:
                for number in itertools.count():
                    record = Records.of([str(number).encode()], timestamp_ms=now_ms())
                    await intake.hand_in(record)
                    print("stored", number)
    """

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled, or until there is nothing more to come.

        When it is cancelled, it takes nothing more from its senders, waits for the answers to what
        is in the intake's buffer, passes them on and ends; the intake is open until then.

        Raises:
            ReceiverError: It cannot receive at all: its port is taken, its broker refuses it.
        """
        ...
