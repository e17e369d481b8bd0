import json
import math

import pytest

import lorry
from lorry import base_model
from lorry.reference import Reference

PROMPTS = [[1, 5, 9, 3], [2, 2]]
LOGPROBS = [[-1.0, -0.5, -0.25], [-3.0]]


def test_it_is_written_as_services_read_it():
    text = Reference(PROMPTS, [[-1, -0.12345678, 1e-7], [-3]], [[-2, -1, -1], [-4]]).to_json()
    assert json.loads(text) == {"prompts": [{"tokens": [1, 5, 9, 3], "logprobs": [-1, -0.123457, 0], "base": [-2, -1, -1]},
                                            {"tokens": [2, 2], "logprobs": [-3], "base": [-4]}]}
    assert "base" not in Reference(PROMPTS, LOGPROBS).to_json()


@pytest.mark.parametrize(("prompts", "logprobs"), [
    ([], []), ([[1]], [[]]), ([[1, 2]] * 9, [[-1.0]] * 9), ([[1] * 65], [[-1.0] * 64]), ([[1, -2]], [[-1.0]]),
    ([[1, 2]], [[-1.0, -1.0]]), ([[1, 2]], []), ([[1, 2]], [[0.5]]), ([[1, 2]], [[math.nan]]), ([[1, 2]], [[-math.inf]]),
])
def test_what_no_service_would_take_is_refused_here(prompts, logprobs):
    with pytest.raises(lorry.Refused, match="REFERENCE_INVALID"):
        Reference(prompts, logprobs)


def test_prompts_that_are_text_are_told_from_tokens():
    with pytest.raises(lorry.Refused, match="REFERENCE_INVALID.*give its token ids"):
        Reference(["Hello"], [[-1.0]])


def tiny_peft_model():
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                      num_attention_heads=2, num_key_value_heads=2)
    lora = peft.LoraConfig(r=2, lora_alpha=8, lora_dropout=0.5, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    return torch, model


def test_a_model_says_what_its_tokens_and_its_bases_are_worth():
    torch, model = tiny_peft_model()
    model.train()
    model.base_model.model.model.embed_tokens.eval()  # as some trainers freeze a part of it
    reference = Reference.of(model, PROMPTS)
    assert model.training and not model.base_model.model.model.embed_tokens.training, "as it was before"
    model.eval()
    with torch.no_grad():
        for prompt, logprobs, base in zip(PROMPTS, reference.logprobs, reference.base, strict=True):
            all_of_them = torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1)
            assert logprobs == pytest.approx([float(all_of_them[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-6)
            with model.disable_adapter():
                all_of_them = torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1)
            assert base == pytest.approx([float(all_of_them[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-6)
            assert base != logprobs


def test_what_is_frozen_or_merged_stays_so():
    _, model = tiny_peft_model()
    frozen = {name for name, _ in model.named_parameters() if "lora_A" in name or "lora_" not in name}
    for name, weight in model.named_parameters():
        weight.requires_grad = name not in frozen
    before = Reference.of(model, PROMPTS)
    assert {name for name, weight in model.named_parameters() if not weight.requires_grad} == frozen
    model.merge_adapter()
    merged = Reference.of(model, PROMPTS)
    assert all(module.merged_adapters == ["default"] for module in model.modules() if hasattr(module, "merged_adapters"))
    assert {name for name, weight in model.named_parameters() if not weight.requires_grad} == frozen
    for after, rows in ((merged.logprobs, before.logprobs), (merged.base, before.base)):
        assert [value for row in after for value in row] == pytest.approx([value for row in rows for value in row], abs=1e-4)


def test_the_base_model_is_written_down():
    _, model = tiny_peft_model()
    assert json.loads(base_model.describe(model)) == {"architecture": "llama"}
    config = model.get_base_model().config
    config._commit_hash, config.quantization_config = "0123456789" * 4, {"quant_method": "fp8"}
    assert json.loads(base_model.describe(model)) == {"architecture": "llama", "quantization": "fp8", "revision": "0123456789" * 4}
    config._commit_hash = "main"
    assert "revision" not in base_model.describe(model)
    assert base_model.describe(object()) is None


def test_prompts_alone_need_a_model():
    run = lorry.Run.__new__(lorry.Run)
    with pytest.raises(lorry.Refused, match="PeftModel"):
        run._reference_json({}, PROMPTS)
    assert run._reference_json({}, Reference(PROMPTS, LOGPROBS)) == Reference(PROMPTS, LOGPROBS).to_json()
