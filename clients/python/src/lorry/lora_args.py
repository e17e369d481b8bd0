"""The LoRA settings of a trainer's command line, checked before a model is loaded, and PEFT's ``LoraConfig`` out of them.

    args = LoraArgs(rank=32, alpha=64, target_modules="all-linear", exclude_modules="up_proj")
    launch_engine(*args.engine_args("sglang", model))   # --enable-lora --max-lora-rank 32 --lora-target-modules ...
    model = args.wrap(model)                            # a PeftModel, to be trained and published

"all-linear" is derived from a model that has no adapter yet: ask for the engine's arguments before the model is wrapped.

Rank, alpha and target modules have to be the same in the trainer and in the engines; here they are said once. Nothing of torch,
transformers or PEFT is imported before a function is called that takes or gives a model or a config of theirs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: In place of a list: every linear module of the text model except its output head.
ALL_LINEAR = "all-linear"
# Parts that see or hear, or lead to the text model from there: the store refuses LoRA on them, by these words of lib/peft/validate.cc.
_TOWER_WORDS = frozenset("tower visual vision vit vpm image video audio speech apm connector projector resampler qformer".split())
# The store's limits, lib/peft/config.h.
RANK_MAX = 4096
ALPHA_MAX = 1e9
# vLLM's --max-lora-rank takes these and no others (vllm/config/lora.py).
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: Of a policy that says nothing else: ``max_staleness`` + 1 versions stay loaded (docs/SEMANTICS.md §6).
KEEP = 2
_CONFIG_FILE = "adapter_config.json"


@dataclasses.dataclass(frozen=True)
class LoraArgs:
    """What to train. A rank of 0 without ``adapter_path`` means no LoRA: nothing else is looked at then.

    Args:
        rank: ``LoraConfig.r``, 1 to 4096; 0 where ``adapter_path`` says it.
        alpha: ``LoraConfig.lora_alpha``; a module adds ``alpha / rank * B @ A``, with ``use_rslora`` ``alpha / sqrt(rank) * B @ A``.
        target_modules: last components of module names as a list or as "q_proj,k_proj", or "all-linear".
        exclude_modules: names taken out of ``target_modules``; a name that is not among them changes nothing.
        adapter_path: a PEFT directory to go on from. Its own rank, alpha and modules count; a rank given too must be the same.
        use_rslora: rank-stabilised scaling.

    Raises:
        ValueError: one sentence about what to change.
    """

    rank: int = 0
    alpha: float = 16
    target_modules: str | Sequence[str] | None = None
    exclude_modules: str | Sequence[str] | None = None
    adapter_path: str | None = None
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 <= self.rank <= RANK_MAX:
            raise ValueError(f"--lora-rank is {self.rank!r}; give a whole number from 1 to {RANK_MAX}, or 0 for no LoRA")
        if not self.enabled:
            return
        if self.adapter_path is not None:
            trained = _ranks(_saved_config(self.adapter_path), self.adapter_path)[0]
            if self.rank not in (0, trained):
                raise ValueError(f"--lora-rank is {self.rank} and the adapter in {self.adapter_path} has rank {trained}; leave "
                                 "--lora-rank out to train it on")
            return
        if not 0 < self.alpha <= ALPHA_MAX:  # NaN, too
            raise ValueError(f"--lora-alpha is {self.alpha!r}; give a number above 0, often the rank or twice the rank")
        if not module_names(self.target_modules):
            raise ValueError(f'--lora-rank is {self.rank} and --target-modules names no module; give "all-linear" or names such '
                             "as q_proj,v_proj")

    @property
    def enabled(self) -> bool:
        """Whether there is any LoRA."""
        return self.rank > 0 or self.adapter_path is not None

    @property
    def max_rank(self) -> int:
        """The largest rank of any module: what engines must have room for. 0 without LoRA.

        Raises:
            ValueError: ``adapter_path`` holds no LoRA that engines serve.
        """
        if self.adapter_path is None:
            return self.rank
        return max(_ranks(_saved_config(self.adapter_path), self.adapter_path))

    def modules(self, model: Any = None) -> tuple[str, ...]:
        """The modules' names, sorted, without the excluded ones; () without LoRA and where every one is excluded.

        Args:
            model: what "all-linear" is derived from, without an adapter yet; not looked at where names are given.

        Raises:
            ValueError: "all-linear" without a model or of one without linear modules; an adapter's ``target_modules`` as an expression.
        """
        if not self.enabled:
            return ()
        if self.adapter_path is not None:
            targets = _saved_config(self.adapter_path).get("target_modules")
            if isinstance(targets, list):
                return tuple(sorted(targets))
            raise ValueError(f"target_modules of the adapter in {self.adapter_path} is the expression {targets!r} and no list; save "
                             "the adapter again with a PEFT that writes the names")
        names = module_names(self.target_modules)
        if ALL_LINEAR in names:
            names = linear_modules(model)
        excluded = set(module_names(self.exclude_modules))
        return tuple(sorted(set(names) - excluded))

    def peft_config(self, model: Any = None) -> Any:
        """The ``LoraConfig`` of PEFT, for a framework that wraps the model itself, such as ``GRPOTrainer(peft_config=...)``.

        Args:
            model: the model to train, needed for "all-linear", and where a part of it that sees or hears has modules of these names,
                which are left out, as engines serve none there.

        Raises:
            ValueError: there is no LoRA, or no module is left of it; or ``adapter_path`` is given: a config carries no weights, so that
                the framework would begin with a fresh adapter, and one that is frozen, as ``save_pretrained`` writes ``inference_mode``.
        """
        from peft import LoraConfig

        if not self.enabled:
            raise ValueError("there is no LoRA to configure; give --lora-rank or --lora-adapter-path")
        if self.adapter_path is not None:
            raise ValueError(f"a config carries no weights, and those in {self.adapter_path} are to be trained on; call args.wrap(model) "
                             "and give the framework the PeftModel, without peft_config")
        modules = self.modules(model)
        if not modules:
            raise ValueError("--exclude-modules takes every one of --target-modules out; leave one in")
        left_out = [re.escape(tower) + r"\..*" for tower in towers(model, modules)]
        head = output_head(model) if ALL_LINEAR in module_names(self.target_modules) else None
        if head and head.rpartition(".")[2] in modules:
            left_out.append(re.escape(head))
        # PEFT takes a list's names for endings of paths and a text for an expression of the whole path.
        return LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=list(modules), use_rslora=self.use_rslora,
                          exclude_modules="|".join(left_out) or None, bias="none")

    def wrap(self, model: Any) -> Any:
        """The model as a PeftModel with a trainable adapter, fresh or from ``adapter_path``; as it is without LoRA.

        Raises:
            ValueError: as :meth:`peft_config`.
        """
        from peft import PeftModel, get_peft_model

        if not self.enabled:
            return model
        if self.adapter_path is not None:
            return PeftModel.from_pretrained(model, self.adapter_path, is_trainable=True)
        return get_peft_model(model, self.peft_config(model))

    def engine_args(self, engine: str, model: Any = None, keep: int = KEEP) -> list[str]:
        """The command line's part that lets an engine serve this adapter; [] without LoRA.

        Args:
            engine: "sglang" or "vllm". vLLM has no flag for modules; its rank is rounded up to the next that it takes. It holds one adapter
                unless it is told otherwise, so that it gets slots for ``keep`` versions and the next, which is loaded before one leaves.
            model: as for :meth:`modules`, not wrapped yet.
            keep: the ``keep`` of the adapter's policy. Add to vLLM's two numbers a slot for each alias and lease, and for other adapters.

        Raises:
            ValueError: another engine, or a rank above vLLM's largest.
        """
        if engine not in ("sglang", "vllm"):
            raise ValueError(f'the engine is {engine!r}; give "sglang" or "vllm"')
        if not self.enabled:
            return []
        rank = self.max_rank
        if engine == "sglang":
            return ["--enable-lora", "--max-lora-rank", str(rank), "--lora-target-modules", *self.modules(model)]
        fitting = [r for r in VLLM_RANKS if r >= rank]
        if not fitting:
            raise ValueError(f"the adapter's largest rank is {rank} and vLLM serves {VLLM_RANKS[-1]} at most; train with a smaller "
                             "rank or serve with SGLang")
        slots = str(keep + 1)
        return ["--enable-lora", "--max-lora-rank", str(fitting[0]), "--max-loras", slots, "--max-cpu-loras", slots]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--lora-rank``, ``--lora-alpha``, ``--target-modules``, ``--exclude-modules``, ``--lora-adapter-path``, ``--use-rslora``."""
    group = parser.add_argument_group("LoRA")
    group.add_argument("--lora-rank", type=int, default=0, help="rank of the adapter; 0, the default, for no LoRA")
    group.add_argument("--lora-alpha", type=float, default=16, help="the adapter is scaled by alpha / rank; default 16")
    group.add_argument("--target-modules", help='"all-linear", or names such as q_proj,v_proj')
    group.add_argument("--exclude-modules", help="names to leave out of --target-modules")
    group.add_argument("--lora-adapter-path", help="a PEFT directory to go on from, with its own rank")
    group.add_argument("--use-rslora", action="store_true", help="scale by alpha / sqrt(rank)")


def from_args(args: argparse.Namespace) -> LoraArgs:
    """Of what a parser with :func:`add_arguments` read.

    Raises:
        ValueError: as :class:`LoraArgs`.
    """
    return LoraArgs(args.lora_rank, args.lora_alpha, args.target_modules, args.exclude_modules, args.lora_adapter_path,
                    args.use_rslora)


def module_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of a list or of "q_proj, k_proj", each once, in the order given; () of None and of an empty text."""
    parts = given.split(",") if isinstance(given, str) else given or ()
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def linear_modules(model: Any) -> tuple[str, ...]:
    """The last components of the names of the text model's linear modules, sorted, without its output head.

    Raises:
        ValueError: there is no model, it has an adapter already, or it has no linear module.
    """
    if model is None:
        raise ValueError('"all-linear" is derived from the model; pass the model, or name the modules in --target-modules')
    if hasattr(model, "peft_config"):
        raise ValueError('"all-linear" is derived from a model without adapters; pass model.unload(), or name the modules')
    head = output_head(model)
    names = {path.rpartition(".")[2] for path, module in model.named_modules()
             if path != head and _is_linear(module) and _tower_of(path) is None}
    if not names:
        raise ValueError(f"{type(model).__name__} has no linear module that LoRA could train; name the modules in --target-modules")
    return tuple(sorted(names))


def towers(model: Any, names: Sequence[str]) -> list[str]:
    """The paths of the parts that see or hear, or connect those with the text model, and have modules of these names."""
    if model is None:
        return []
    return sorted({tower for path, _ in model.named_modules() for tower in [_tower_of(path)]
                   if tower is not None and path != tower and path.endswith(tuple(f".{name}" for name in names))})


def _tower_of(path: str) -> str | None:
    """The path's beginning that ends with a tower's name. Layers of the text model are none, however their modules are named."""
    parts = path.partition(".layers.")[0].split(".")
    return next((".".join(parts[:i + 1]) for i, part in enumerate(parts) if not _TOWER_WORDS.isdisjoint(part.split("_"))), None)


def output_head(model: Any) -> str | None:
    """The name of the module that makes logits, "lm_head" as a rule; None where the model does not say."""
    if model is None or not hasattr(model, "get_output_embeddings"):
        return None
    head = model.get_output_embeddings()
    return next((path for path, module in model.named_modules() if head is not None and module is head), None)


def _is_linear(module: Any) -> bool:
    import torch

    # Conv1D is how transformers writes the linear modules of GPT-2.
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def _saved_config(path: str) -> Mapping[str, Any]:
    file = pathlib.Path(path) / _CONFIG_FILE
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--lora-adapter-path is {path} and its {_CONFIG_FILE} cannot be read ({error.strerror}); give a directory "
                         "that save_pretrained wrote") from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); write it with save_pretrained") from None
    if not isinstance(fields, dict) or fields.get("peft_type") != "LORA":
        raise ValueError(f"{file} is of no LoRA adapter; engines serve LoRA alone")
    for field, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None)):
        if fields.get(field, plain) not in (plain, None, []):
            raise ValueError(f"{file} has {field}={fields[field]!r}, which engines do not serve; train without it or sync merged weights")
    return fields


def _ranks(fields: Mapping[str, Any], path: str) -> list[int]:
    """``r`` first, then what ``rank_pattern`` says of single modules."""
    patterns = fields.get("rank_pattern") or {}
    ranks = [fields.get("r", 8), *(patterns.values() if isinstance(patterns, dict) else [None])]  # PEFT's default is 8
    if all(isinstance(rank, int) and 0 < rank <= RANK_MAX for rank in ranks):
        return ranks
    raise ValueError(f"the {_CONFIG_FILE} in {path} has the ranks {ranks}; write it with save_pretrained")
