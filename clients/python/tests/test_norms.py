import pytest

from lorry.image import BufferPool, build
from lorry.norms import METADATA_KEY, BaseNorms, to_ppm

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


def model_with_adapter(b_value):
    base = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(8, 4, bias=False), "v_proj": torch.nn.Linear(8, 2, bias=False)})
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(base, config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(weight, b_value)
    return model


def by_hand(model):
    ratios = []
    for module in model.modules():
        if hasattr(module, "get_base_layer"):
            delta = module.get_delta_weight("default")
            ratios.append(float(delta.norm() / module.get_base_layer().weight.norm()))
    return max(ratios)


def test_it_is_the_largest_of_any_module():
    model = model_with_adapter(0.25)
    assert BaseNorms().relative_norm(model) == pytest.approx(by_hand(model), rel=1e-5)


def test_the_base_is_looked_at_once_and_the_adapter_each_time():
    model, norms = model_with_adapter(0.25), BaseNorms()
    before = norms.relative_norm(model)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data *= 3
    assert norms.relative_norm(model) == pytest.approx(3 * before, rel=1e-5)


def test_a_fresh_adapter_changes_nothing():
    assert BaseNorms().relative_norm(model_with_adapter(0.0)) == 0


def test_where_no_base_weight_is_at_hand_nothing_is_said():
    model = model_with_adapter(0.25)
    for module in model.modules():
        if hasattr(module, "get_base_layer"):
            module.get_base_layer().weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    assert BaseNorms().relative_norm(model) is None


def test_parts_per_million_are_whole_and_0_says_nothing():
    assert [to_ppm(x) for x in (0.0, float("nan"), 1e-9, 0.0123, 1e9)] == [0, 0, 1, 12300, 2**32 - 1]


def test_the_image_carries_it():
    state = {"base_model.model.x.lora_A.weight": torch.zeros(2, 2), "base_model.model.x.lora_B.weight": torch.zeros(2, 2)}
    header = build(state, 0, 1, BufferPool(), {METADATA_KEY: "12300"}).header
    assert b'"__metadata__":{"format":"pt","lorry.relative_norm_ppm":"12300"}' in header
