"""How much an adapter changes its model: what engine-proxies ask of an engine before they believe that it applies a version."""

from __future__ import annotations

from typing import Any

from lorry.state import active_adapter

#: The key in the image's metadata; its value is decimal digits.
METADATA_KEY = "lorry.relative_norm_ppm"
_PPM_MAX = 2**32 - 1


def to_ppm(relative_norm: float) -> int:
    """Parts per million; 0 says nothing, so that any change at all is at least 1."""
    if not relative_norm > 0:  # NaN, too
        return 0
    return int(min(max(round(relative_norm * 1e6), 1), _PPM_MAX))


class BaseNorms:
    """Remembers the norms of the base weights, which do not change while an adapter is trained."""

    def __init__(self) -> None:
        self._norms: dict[str, float] = {}

    def relative_norm(self, model: Any) -> float | None:
        """The largest ``|scale * B @ A| / |W|`` of any module of a PeftModel's active adapter, in Frobenius norms.

        None where no module's base weight is at hand as one dense matrix: sharded over ranks, quantised, on no device.
        """
        import torch

        name = active_adapter(model)
        found = [
            (squared, abs(float(module.scaling[name])) / self._norms[path])
            for path, module in model.named_modules()
            if name in getattr(module, "lora_A", ()) and hasattr(module, "get_base_layer")
            for squared in [self._squared(path, module, name)]
            if squared is not None
        ]
        if not found:
            return None
        # All at a time: a GPU is waited for once, not at every module.
        squares = torch.stack([squared.to(found[0][0].device) for squared, _ in found]).tolist()
        return float(max(factor * max(squared, 0.0) ** 0.5 for squared, (_, factor) in zip(squares, found, strict=True)))

    def _squared(self, path: str, module: Any, name: str) -> Any:
        """The squared norm of ``B @ A`` as a tensor; None where it or the base weight's is not to be had."""
        a, b = module.lora_A[name].weight.detach(), module.lora_B[name].weight.detach()
        base = getattr(module.get_base_layer(), "weight", None)
        if base is None:
            return None
        matrices = (a, b, base)
        if any(hasattr(t, "to_local") or t.is_meta or not t.is_floating_point() for t in matrices):
            return None
        if base.dim() != 2 or a.dim() != 2 or base.numel() != b.shape[0] * a.shape[1]:
            return None
        if path not in self._norms:
            self._norms[path] = float(base.detach().float().norm())
        if not self._norms[path] > 0:
            return None
        a, b = a.float(), b.float()
        # |B A|^2 = trace(A^T B^T B A) = sum((B^T B) * (A A^T)): r x r, and never out x in.
        return ((b.T @ b) * (a @ a.T)).sum()
