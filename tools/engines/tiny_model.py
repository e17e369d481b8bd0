"""Makes a tiny random Llama, its tokenizer, and LoRA adapters good and bad, in a few seconds and without a download.

usage: .venv/dev/bin/python tools/engines/tiny_model.py OUT

    OUT/model                 hidden 128, 2 layers, 512 tokens; every token id decodes to text
    OUT/adapters/v1 v2 v3     rank 8 on all seven projections, random and clearly different from the base
    OUT/adapters/rslora rank_pattern          good ones that engines differ on
    OUT/adapters/bigrank absent wrongshape truncated noconfig nan dora modules_to_save unpaired ia3     bad ones

The same script makes the same bytes on every machine with the same torch, so OUT is replaced as a whole or left alone:
it is built beside OUT and renamed.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import torch
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
HIDDEN = 128
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["the quick brown fox jumps over the lazy dog", "hello world, a tiny tokenizer"] * 50
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"w{i:03d}" for i in range(missing)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_base(hidden: int = HIDDEN) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(torch.float32)


def edit_config(folder: pathlib.Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    config.update(changes)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))


def save_adapter(
    folder: pathlib.Path, seed: int, hidden: int = HIDDEN, rank: int = 8, **options: object
) -> None:
    torch.manual_seed(seed)
    lora = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(PROJECTIONS),
        task_type="CAUSAL_LM",
        **options,
    )
    model = get_peft_model(make_base(hidden), lora)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    # PEFT writes modules in the order of a set; sorted, the same script always makes the same bytes.
    edit_config(folder, base_model_name_or_path="tiny-llama", target_modules=sorted(PROJECTIONS))


def save_damaged(adapters: pathlib.Path) -> None:
    """The bad ones that are made by damaging v1."""
    for name in ("absent", "truncated", "noconfig", "nan", "unpaired"):
        shutil.copytree(adapters / "v1", adapters / name)
    tensors = load_file(adapters / "v1" / WEIGHTS)

    def write(name: str, changed: dict[str, torch.Tensor]) -> None:
        save_file(changed, adapters / name / WEIGHTS, metadata={"format": "pt"})

    write("absent", {k.replace("q_proj", "nosuch_proj"): v for k, v in tensors.items()})
    edit_config(
        adapters / "absent",
        target_modules=sorted(m.replace("q_proj", "nosuch_proj") for m in PROJECTIONS),
    )
    first = sorted(tensors)[0]
    poisoned = {k: v.clone() for k, v in tensors.items()}
    poisoned[first].view(-1)[3] = float("nan")
    write("nan", poisoned)
    write("unpaired", {k: v for k, v in tensors.items() if k != first})
    weights = adapters / "truncated" / WEIGHTS
    os.truncate(weights, weights.stat().st_size // 2)
    (adapters / "noconfig" / CONFIG).unlink()


def make(out: pathlib.Path) -> None:
    """Builds everything beside `out`, then renames it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    make_tokenizer().save_pretrained(work / "model")
    make_base().save_pretrained(work / "model")
    config = json.loads((work / "model" / "config.json").read_text())
    config["rope_theta"] = 10000.0  # mistral.rs reads it here and not in rope_parameters
    (work / "model" / "config.json").write_text(json.dumps(config, indent=2))

    adapters = work / "adapters"
    for version in (1, 2, 3):
        save_adapter(adapters / f"v{version}", seed=100 + version)
    save_adapter(adapters / "rslora", seed=110, use_rslora=True)
    save_adapter(adapters / "rank_pattern", seed=111, rank_pattern={"q_proj": 4})
    save_adapter(adapters / "bigrank", seed=112, rank=64)
    save_adapter(adapters / "wrongshape", seed=113, hidden=HIDDEN // 2)
    save_adapter(adapters / "dora", seed=114, use_dora=True)
    save_adapter(adapters / "modules_to_save", seed=115, modules_to_save=["lm_head"])
    ia3 = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    )
    get_peft_model(make_base(), ia3).save_pretrained(adapters / "ia3")
    save_damaged(adapters)

    os.chmod(work, 0o755)
    shutil.rmtree(out, ignore_errors=True)
    os.rename(work, out)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
