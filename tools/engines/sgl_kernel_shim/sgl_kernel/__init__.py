"""Stand-in for the CPU build of sgl_kernel, which PyPI does not have.

SGLang imports names from it while loading its modules; on a CPU without AMX its layers take the torch-native paths, so
the names are imported and never called. One that is called all the same says which.

SGLang's LoRA code also asks torch for pinned host memory, which torch refuses where there is no CUDA driver. Pinning
only speeds up copies to a GPU, so here the request is dropped.
"""

import functools

import torch

__version__ = "0.4.10"

_PINNABLE = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "full",
    "ones",
    "randn",
    "tensor",
    "zeros",
    "zeros_like",
)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing


def _unpinned(factory):
    @functools.wraps(factory)
    def call(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return call


if not torch.cuda.is_available():
    for _name in _PINNABLE:
        setattr(torch, _name, _unpinned(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
