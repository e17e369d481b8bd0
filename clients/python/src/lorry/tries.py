"""What becomes of a number that a run publishes more than once: never a mixture."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorry.handle import PublishHandle

# Numbers that a loop may repeat lie close together; a thousand take half a megabyte.
NUMBERS_MAX = 1000


@dataclass
class Try:
    """One publish of a number on this rank.

    Attributes:
        attempt: the store's word for it. What two publishes of a number sent must not end up in one image, so each has an attempt
            of its own; all ranks mean the same one without a word between them, as all publish a number equally often.
        before: earlier ones of the number, as far as they may have been stored.
        handle: while it is on its way.
        upload_id: empty until the store has begun it.
        fingerprint: of what this rank sends.
        is_stored: this rank knows that it became the version.
    """

    attempt: int
    before: list[Try] = field(default_factory=list)
    handle: PublishHandle | None = None
    upload_id: str = ""
    fingerprint: bytes = b""
    is_stored: bool = False


class Tries:
    """The latest of each number. One thread begins them.

    Args:
        attempt: of a number's first.
    """

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._latest: dict[int, Try] = {}

    def begin(self, number: int) -> Try:
        """The next of this number. What was on its way for it ends: its handle raises AttemptFenced."""
        last = self._latest.pop(number, None)
        if last is None:
            new = Try(self._attempt)
        else:
            new = Try(last.attempt + 1, [*last.before, last])
            if last.handle is not None:
                last.handle._replace()
        self._latest[number] = new
        while len(self._latest) > NUMBERS_MAX:
            del self._latest[next(iter(self._latest))]
        return new
