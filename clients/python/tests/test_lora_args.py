"""Settings in, PEFT's config or one clear sentence out."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys

import pytest

from lorry import lora_args
from lorry.lora_args import LoraArgs, module_names

SEVEN = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def parsed(*words):
    parser = argparse.ArgumentParser()
    lora_args.add_arguments(parser)
    return lora_args.from_args(parser.parse_args(words))


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64))


def saved(path, **fields):
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], **fields}))
    return str(path)


def test_it_is_imported_without_torch():
    code = "import sys, lorry.lora_args; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'peft')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("given", "names"), [
    ("q_proj,v_proj", ("q_proj", "v_proj")),
    (" q_proj , v_proj,", ("q_proj", "v_proj")),
    ("q_proj", ("q_proj",)),
    (["q_proj", "v_proj"], ("q_proj", "v_proj")),
    ("q_proj,q_proj", ("q_proj",)),
    ("", ()),
    (None, ()),
])
def test_names_are_a_list_or_text_with_commas(given, names):
    assert module_names(given) == names


@pytest.mark.parametrize(("exclude", "left"), [
    (None, ("q_proj", "v_proj")),
    ("", ("q_proj", "v_proj")),
    ("q_proj", ("v_proj",)),
    ("q", ("q_proj", "v_proj")),
    ("up_proj", ("q_proj", "v_proj")),
    ("q_proj, v_proj", ()),
])
def test_what_is_excluded_is_left_out_by_its_whole_name(exclude, left):
    assert LoraArgs(8, target_modules="q_proj,v_proj", exclude_modules=exclude).modules() == left


def test_all_linear_is_what_the_model_has_without_its_head(llama):
    assert LoraArgs(8, target_modules="all-linear").modules(llama) == SEVEN
    assert LoraArgs(8, target_modules="all-linear", exclude_modules="up_proj").modules(llama) == tuple(
        m for m in SEVEN if m != "up_proj")


def test_all_linear_knows_no_names_of_its_own():
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleDict({"wq": torch.nn.Linear(4, 4), "norm": torch.nn.LayerNorm(4)})
    assert LoraArgs(8, target_modules="all-linear").modules(model) == ("wq",)


def test_a_head_that_shares_its_name_with_a_layer_is_left_out(llama):
    torch = pytest.importorskip("torch")
    llama.model.layers[0].lm_head = torch.nn.Linear(16, 16)
    model = LoraArgs(8, target_modules="all-linear").wrap(llama)
    trained = {name for name, _ in model.named_parameters() if "lora_A" in name and "lm_head" in name}
    assert trained == {"base_model.model.model.layers.0.lm_head.lora_A.default.weight"}


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj,o_proj"])
def test_towers_are_left_out(targets):
    """Their modules may be named as the text model's are. The store refuses LoRA on them."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")

    def layers(*names):
        return torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({n: torch.nn.Linear(4, 4) for n in names})])})

    model = torch.nn.ModuleDict({
        "vision_tower": torch.nn.ModuleDict({"encoder": layers("q_proj", "v_proj", "out_proj")}), "language_model": layers("q_proj", "o_proj"),
        "multi_modal_projector": torch.nn.ModuleDict({"linear_1": torch.nn.Linear(4, 4)})})
    args = LoraArgs(8, target_modules=targets)
    if targets == "all-linear":
        assert args.modules(model) == ("o_proj", "q_proj")
    assert args.peft_config(model).exclude_modules == r"vision_tower\..*"
    trained = {name.partition(".lora_A")[0] for name, _ in peft.get_peft_model(model, args.peft_config(model)).named_parameters() if "lora_A" in name}
    assert trained == {f"base_model.model.language_model.layers.0.{name}" for name in ("q_proj", "o_proj")}


def test_the_config_is_pefts(llama):
    config = LoraArgs(8, 32, "all-linear", use_rslora=True).peft_config(llama)
    assert (config.r, config.lora_alpha, config.use_rslora, set(config.target_modules)) == (8, 32, True, set(SEVEN))
    assert (config.bias, config.modules_to_save, config.exclude_modules) == ("none", None, None)


def test_an_adapter_is_trained_on_with_its_own_rank(llama, tmp_path):
    LoraArgs(4, 12, "q_proj,v_proj").wrap(llama).save_pretrained(tmp_path)
    args = LoraArgs(adapter_path=str(tmp_path))
    model = args.wrap(llama.__class__(llama.config))
    assert (model.peft_config["default"].r, model.peft_config["default"].lora_alpha, args.max_rank) == (4, 12, 4)
    assert args.modules() == ("q_proj", "v_proj")
    assert all(p.requires_grad for name, p in model.named_parameters() if "lora_" in name)
    assert LoraArgs(4, adapter_path=str(tmp_path)) != args  # the same rank may be said again


def test_an_adapter_to_train_on_is_no_config(llama, tmp_path):
    """PEFT would make a fresh adapter of it, with B = 0, and a frozen one, as save_pretrained writes inference_mode."""
    LoraArgs(4, 12, "q_proj,v_proj").wrap(llama).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["inference_mode"] is True
    with pytest.raises(ValueError, match=r"a config carries no weights.*args\.wrap\(model\)"):
        LoraArgs(adapter_path=str(tmp_path)).peft_config(llama)


def test_without_a_rank_nothing_else_is_looked_at(llama):
    args = LoraArgs(0, math.nan, "all-linear", "q_proj")
    assert (args.enabled, args.modules(), args.max_rank, args.engine_args("vllm")) == (False, (), 0, [])
    assert args.wrap(llama) is llama


def test_the_command_line_says_the_same():
    words = ["--lora-rank", "8", "--lora-alpha", "32", "--target-modules", "q_proj, v_proj", "--exclude-modules", "q_proj", "--use-rslora"]
    assert parsed(*words) == LoraArgs(8, 32, "q_proj, v_proj", "q_proj", None, True)
    assert not parsed().enabled


def test_engines_get_room_for_the_largest_rank(tmp_path):
    adapter = LoraArgs(adapter_path=saved(tmp_path, rank_pattern={"up_proj": 12}))
    assert adapter.max_rank == 12
    assert adapter.engine_args("sglang") == ["--enable-lora", "--max-lora-rank", "12", "--lora-target-modules", "q_proj"]
    assert adapter.engine_args("vllm")[:3] == ["--enable-lora", "--max-lora-rank", "16"]


@pytest.mark.parametrize(("keep", "slots"), [({}, "3"), ({"keep": 4}, "5")])
def test_vllm_gets_slots_for_what_is_kept_and_the_next_version(keep, slots):
    """It has one by default, and the next version is loaded before one leaves."""
    assert LoraArgs(8, target_modules="q_proj").engine_args("vllm", **keep)[3:] == ["--max-loras", slots, "--max-cpu-loras", slots]


def test_the_lines_of_the_modules_example_run(llama):
    """As they stand in its docstring, one after the other."""
    lines = re.findall("^    (.+)$", lora_args.__doc__, re.MULTILINE)
    told = []
    scope = {"LoraArgs": LoraArgs, "model": llama, "launch_engine": lambda *words: told.extend(words)}
    exec("\n".join(lines), scope)
    assert told == ["--enable-lora", "--max-lora-rank", "32", "--lora-target-modules", *(m for m in SEVEN if m != "up_proj")]
    assert scope["model"].peft_config["default"].r == 32


@pytest.mark.parametrize(("rank", "given"), [(1, "1"), (4, "8"), (8, "8"), (12, "16"), (200, "256"), (257, "320"), (512, "512")])
def test_vllm_takes_some_ranks_only(rank, given):
    assert LoraArgs(rank, target_modules="q_proj").engine_args("vllm")[2] == given


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: LoraArgs(-1), "--lora-rank is -1"),
    (lambda: LoraArgs(True), "--lora-rank is True"),
    (lambda: LoraArgs(8.0), "--lora-rank is 8.0"),
    (lambda: LoraArgs(4097, target_modules="q_proj"), "from 1 to 4096"),
    (lambda: LoraArgs(8), "--target-modules names no module"),
    (lambda: LoraArgs(8, target_modules=" , "), "--target-modules names no module"),
    (lambda: LoraArgs(8, 0, "q_proj"), "--lora-alpha is 0"),
    (lambda: LoraArgs(8, math.nan, "q_proj"), "--lora-alpha is nan"),
    (lambda: LoraArgs(8, math.inf, "q_proj"), "--lora-alpha is inf"),
    (lambda: LoraArgs(8, target_modules="all-linear").modules(), "pass the model"),
    (lambda: LoraArgs(8, target_modules="q_proj").engine_args("tgi"), 'give "sglang" or "vllm"'),
    (lambda: LoraArgs(1024, target_modules="q_proj").engine_args("vllm"), "vLLM serves 512 at most"),
    (lambda: LoraArgs(adapter_path="/nowhere/at/all"), "adapter_config.json cannot be read"),
])
def test_what_is_wrong_is_said_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"peft_type": "IA3"}, "of no LoRA adapter"),
    ({"use_dora": True}, "use_dora=True"),
    ({"bias": "all"}, "bias='all'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save="),
    ({"r": "8"}, "has the ranks"),
    ({"rank_pattern": [4]}, "has the ranks"),
])
def test_an_adapter_that_engines_do_not_serve_is_not_trained_on(tmp_path, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        LoraArgs(adapter_path=saved(tmp_path, **fields))


def test_an_adapters_rank_and_another_are_two_wishes(tmp_path):
    with pytest.raises(ValueError, match="has rank 8; leave --lora-rank out"):
        LoraArgs(16, adapter_path=saved(tmp_path))


def test_no_config_of_nothing(llama):
    pytest.importorskip("peft")
    with pytest.raises(ValueError, match="there is no LoRA"):
        LoraArgs().peft_config()
    with pytest.raises(ValueError, match="leave one in"):
        LoraArgs(8, target_modules="q_proj", exclude_modules="q_proj").peft_config()
    with pytest.raises(ValueError, match="without adapters"):
        LoraArgs(8, target_modules="all-linear").modules(LoraArgs(8, target_modules="q_proj").wrap(llama))
    with pytest.raises(ValueError, match="no linear module"):
        LoraArgs(8, target_modules="all-linear").modules(pytest.importorskip("torch").nn.LayerNorm(4))
