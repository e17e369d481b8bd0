"""What to publish: tensors and config out of a PeftModel, a state dict or a PEFT directory."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from lorry.errors import LorryError, Refused
from lorry.image import StoredTensor

# adapter_config.json is at most 1 MiB at the store; a larger file is not one.
_CONFIG_BYTES_MAX = 1 << 20
# The store takes headers of at most 16 MiB; what claims more is garbage and not a header.
_HEADER_BYTES_MAX = 16 << 20
_CHECKPOINTED = "_checkpoint_wrapped_module."


def collect(source: Any, config: Any) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Tensors by name and the config's fields.

    Raises:
        Refused: the source is none of the three, or lacks its config; or that is no config.
        LorryError: DIRECTORY_CHANGED: somebody wrote to the directory while it was read.
    """
    config = _fields(config)
    if isinstance(source, (str, os.PathLike)):
        return _directory(pathlib.Path(source), config)
    if isinstance(source, Mapping):
        if config is None:
            raise Refused("a state dict needs config=: the fields of adapter_config.json", "CONFIG_MISSING",
                          "INVALID_ARGUMENT")
        _refuse_whole_modules(config)
        return source, config
    if hasattr(source, "peft_config") and hasattr(source, "get_base_model"):  # models of transformers have the former after add_adapter
        return _peft_model(source, config)
    raise Refused(
        f"cannot publish a {type(source).__name__}: pass a PeftModel, a state dict with config=, or a directory",
        "SOURCE_UNKNOWN", "INVALID_ARGUMENT")


def active_adapter(model: Any) -> str:
    """The name of the one adapter that a PeftModel computes with.

    ``model.active_adapter`` is not asked: ``model.base_model.set_adapter`` leaves it as it was.

    Raises:
        Refused: it computes with none, with several, or with one more that is merged into its weights.
    """
    active = list(model.active_adapters)
    if len(active) != 1:
        raise Refused(f"{len(active)} adapters are active, {active}; activate the one to train and publish: model.set_adapter(name)",
                      "ADAPTER_AMBIGUOUS", "INVALID_ARGUMENT")
    others = {name for module in model.modules() for name in getattr(module, "merged_adapters", ())} - set(active)
    if others:
        raise Refused(f"{sorted(others)} beside {active[0]} is merged into the model, which engines would compute without; call "
                      "model.unmerge_adapter(), or save the merged model and serve that as the base model", "ADAPTER_AMBIGUOUS",
                      "INVALID_ARGUMENT")
    return str(active[0])


def settle(config: Mapping[str, Any], target_modules: list[str], unstacked: bool) -> dict[str, Any]:
    """The config that belongs to an image: its modules as the image names them.

    Raises:
        Refused: modules were taken apart, and the config has ranks or alphas by names, which may be of those that are gone: the parts
            would be served with another scaling than they were trained with.
    """
    fields = {**config, "target_modules": target_modules}
    if unstacked:
        for pattern in ("rank_pattern", "alpha_pattern"):
            if config.get(pattern):
                raise Refused(f"{pattern} beside fused modules or stacked experts cannot be carried over to their parts; train them with "
                              "one r and one lora_alpha", "CONFIG_UNSUPPORTED", "INVALID_ARGUMENT")
        if "experts" not in target_modules:  # they are said by target_modules now
            fields["target_parameters"] = None
    return fields


def _fields(config: Any) -> dict[str, Any] | None:
    """Of a mapping, or of PEFT's LoraConfig, which has them as one."""
    if config is not None and not isinstance(config, Mapping) and hasattr(config, "to_dict"):
        config = config.to_dict()
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise Refused(f"config= is a {type(config).__name__}; give adapter_config.json's fields: config.to_dict()", "CONFIG_MALFORMED",
                      "INVALID_ARGUMENT")
    return dict(_plain(config))


def _refuse_whole_modules(fields: Mapping[str, Any]) -> None:
    """Before any tensor is judged: those of whole modules look like trained embeddings, or like nothing known."""
    if fields.get("modules_to_save"):
        raise Refused(f"modules_to_save trains whole modules, {fields['modules_to_save']}, which engines would drop; leave it empty or sync "
                      "merged weights instead", "MODULES_TO_SAVE_UNSUPPORTED", "INVALID_ARGUMENT")


def _peft_model(model: Any, config: dict[str, Any] | None) -> tuple[Mapping[str, Any], dict[str, Any]]:
    from peft import get_peft_model_state_dict

    name = active_adapter(model)
    fields = _plain(model.peft_config[name].to_dict())
    fields.update(config or {})
    _refuse_whole_modules(fields)
    _refuse_other_vocabulary(getattr(model, "config", None), fields)
    # By default PEFT asks the hub about the vocabulary, at every call.
    return get_peft_model_state_dict(model, _named_by_paths(model), adapter_name=name, save_embedding_layers=False), fields


def _named_by_paths(model: Any) -> dict[str, Any] | None:
    """The model's state dict by the paths of its modules, where those have a part that torch leaves out of it: within a module whose
    activations are checkpointed (FSDP's way) PEFT finds no tensors otherwise. None where nothing is."""
    paths = {path.replace(_CHECKPOINTED, ""): path for path, _ in model.named_parameters(remove_duplicate=False) if _CHECKPOINTED in path}
    return {paths.get(name, name): tensor for name, tensor in model.state_dict().items()} if paths else None


def _refuse_other_vocabulary(config: Any, fields: Mapping[str, Any]) -> None:
    """Where the base model's config is on this machine, which it was loaded on."""
    size, base = getattr(config, "vocab_size", None), fields.get("base_model_name_or_path")
    known = _vocabulary_of(config.__class__, base, fields.get("revision")) if size and base else None
    if known is not None and size != known:
        raise Refused(f"the model's vocabulary was resized, from the {known} tokens of {base} to {size}, and engines have the former; train "
                      "without added tokens, or sync merged weights instead", "EMBEDDING_UNSUPPORTED", "INVALID_ARGUMENT")


@functools.lru_cache(maxsize=16)
def _vocabulary_of(kind: Any, base: str, revision: str | None) -> int | None:
    """Of a folder or of the hub's cache, by transformers' class of configs; None where it is in neither."""
    from huggingface_hub import try_to_load_from_cache  # hf_hub_download has questions to the hub even about what is cached

    try:
        file = base if os.path.isdir(base) else try_to_load_from_cache(base, "config.json", revision=revision)
        size = getattr(kind.from_pretrained(file), "vocab_size", None) if isinstance(file, str) else None
    except (OSError, ValueError):
        return None
    return size if isinstance(size, int) else None


def _directory(path: pathlib.Path, config: dict[str, Any] | None) -> tuple[Mapping[str, Any], dict[str, Any]]:
    file = path / "adapter_config.json"
    if not path.is_dir():
        raise Refused(f"{path} is no directory; name the one that save_pretrained wrote", "DIRECTORY_INVALID", "INVALID_ARGUMENT")
    if not file.is_file():
        raise Refused(f"{path} is no PEFT directory: it has no adapter_config.json", "CONFIG_MISSING",
                      "INVALID_ARGUMENT")
    if file.stat().st_size > _CONFIG_BYTES_MAX:
        raise Refused(f"{file} is larger than 1 MiB", "CONFIG_MALFORMED", "INVALID_ARGUMENT")
    weights = path / "adapter_model.safetensors"
    text, *images = _read(path, [file, weights] if weights.is_file() else [file])
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise Refused(f"{file} is not JSON ({error}); write it with save_pretrained", "CONFIG_MALFORMED",
                      "INVALID_ARGUMENT") from None
    if not isinstance(fields, dict):
        raise Refused(f"{file} is no JSON object; write it with save_pretrained", "CONFIG_MALFORMED",
                      "INVALID_ARGUMENT")
    _refuse_whole_modules(fields)
    if not images:
        raise Refused(f"{path} has no adapter_model.safetensors; save it with safe_serialization=True",
                      "IMAGE_MISSING", "INVALID_ARGUMENT")
    return _tensors(weights, images[0]), {**fields, **(config or {})}


def _read(path: pathlib.Path, files: list[pathlib.Path]) -> list[bytes]:
    """What is in them, of one moment: a trainer may be writing the next step over it.

    Raises:
        LorryError: DIRECTORY_CHANGED.
    """
    try:
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(file.open("rb")) for file in files]
            before = [_stamp(file.fileno()) for file in opened]
            texts = [file.read() for file in opened]
            if [_stamp(file) for file in files] == before:
                return texts
    except FileNotFoundError:
        pass
    raise LorryError(f"{path} was written to while it was read; publish it once the trainer has closed its files", "DIRECTORY_CHANGED", "ABORTED")


def _stamp(file: pathlib.Path | int) -> tuple[int, ...]:
    """Which file it is, and what it was when somebody wrote to it last."""
    told = os.stat(file)
    return (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns)


def _tensors(weights: pathlib.Path, image: bytes) -> Mapping[str, Any]:
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(image)  # type: ignore[no-untyped-call]
        return {name: StoredTensor(e["dtype"], tuple(e["shape"]), e["data"]) for name, e in entries}
    except SafetensorError as error:
        if _ends_early(image):
            raise Refused(f"{weights} ends before its tensors do; publish once writing has ended", "IMAGE_TRUNCATED",
                          "INVALID_ARGUMENT") from None
        raise Refused(f"{weights} is no safetensors file ({error}); write it with save_file", "IMAGE_MALFORMED",
                      "INVALID_ARGUMENT") from None


def _ends_early(image: bytes) -> bool:
    """Whether a file has fewer bytes than its header says. safetensors has one error for this and for worse."""
    length = int.from_bytes(image[:8], "little")
    if len(image) < 8 + length:
        return length <= _HEADER_BYTES_MAX
    try:
        entries = json.loads(image[8 : 8 + length])
        return any(e["data_offsets"][1] > len(image) - 8 - length for n, e in entries.items() if n != "__metadata__")
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def _plain(value: Any) -> Any:
    """PEFT keeps sets and enumerations where JSON has lists and words."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
