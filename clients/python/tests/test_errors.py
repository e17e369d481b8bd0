"""Errors that leave the process in which they were raised, as out of a pool's worker or a Ray actor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from lorry import errors


def every_class(of: type[errors.LorryError] = errors.LorryError) -> Iterator[type[errors.LorryError]]:
    yield of
    for one in of.__subclasses__():
        yield from every_class(one)


def made(kind: type[errors.LorryError]) -> errors.LorryError:
    return errors.Superseded("policy r1.6 came", 7) if kind is errors.Superseded else kind("the store said so", "A_REASON", "ABORTED")


@pytest.mark.parametrize("kind", list(every_class()))
def test_an_error_is_the_same_in_another_process(kind: type[errors.LorryError]) -> None:
    error = made(kind)
    through_a_pipe = pickle.loads(pickle.dumps(error))  # tidy: allow unpickle: it was pickled right here
    for again in (through_a_pipe, copy.copy(error)):
        assert type(again) is kind and str(again) == str(error) and vars(again) == vars(error)
