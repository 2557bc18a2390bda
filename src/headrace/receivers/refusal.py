"""A request that is not taken, with its status and what its sender can do."""

import json
import math


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault of ours
    """Ends the handling of a request.

    Attributes:
        status: The status of the answer.
        sentence: What was wrong, and what to do; nothing secret.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}

    @property
    def body(self) -> bytes:
        """The answer's body: JSON with the sentence."""
        return json.dumps({"error": self.sentence}).encode()


def come_back(delay_s: float, why: str) -> Refusal:
    """429, with the whole seconds after which it is worth sending again."""
    wait_s = max(1, math.ceil(delay_s))
    sentence = f"{why}; send it again in {wait_s} s."
    return Refusal(429, sentence, {"retry-after": str(wait_s)})
