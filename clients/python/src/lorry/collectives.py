"""The little that ranks must agree on, over torch.distributed where it is in use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from lorry import errors

T = TypeVar("T")

#: As ``group``: this process publishes for itself, whatever torch.distributed job it is a rank of.
ALONE = object()


class Ranks:
    """This process' place among the ranks; 0 of 1 without torch.distributed."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._dist: Any = None
        torch = sys.modules.get("torch")  # a trainer that did not import torch has no process group
        if group is not ALONE and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            self._dist = torch.distributed
        self.rank: int = self._dist.get_rank(group) if self._dist else 0
        self.world_size: int = self._dist.get_world_size(group) if self._dist else 1

    def raise_if_any(self, failed: Exception | None) -> None:
        """On every rank the same error where one of them failed, so that none waits for it in what they do together next.

        Raises:
            ValueError, LorryError: of the first rank that failed, which it names.
        """
        if self._dist is None:
            if failed is not None:
                raise failed
            return
        mine = failed and (isinstance(failed, ValueError), getattr(failed, "message", str(failed)), getattr(failed, "reason", ""),
                           getattr(failed, "code", "UNKNOWN"))
        told: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(told, mine, group=self._group)
        for rank, one in enumerate(told):
            if one is not None:
                is_value, message, reason, code = one
                text = f"rank {rank} of {self.world_size}: {message}"
                raise ValueError(text) if is_value else errors.of(text, reason, code)

    def from_first(self, ask: Callable[[], T]) -> T:
        """``ask()`` on rank 0; its answer, or its error, on every rank."""
        if self._dist is None:
            return ask()
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = ask()
            except Exception as error:
                box[1] = error
        first = self._dist.get_global_rank(self._group, 0) if self._group is not None else 0
        self._dist.broadcast_object_list(box, src=first, group=self._group)
        if box[1] is not None:
            raise box[1]
        answer: T = box[0]
        return answer
