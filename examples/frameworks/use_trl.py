"""TRL's GRPOTrainer in server mode, its adapter synced through Lorry instead of merged weights.

    lorry up --engine http://127.0.0.1:8000      # a vLLM with --enable-lora; prints the door's URL
    DOOR=http://127.0.0.1:40001 MODEL=Qwen/Qwen3-0.6B python examples/frameworks/use_trl.py
"""

import os

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig

MODEL, STEPS = os.environ["MODEL"], int(os.environ.get("STEPS", "20"))
PROMPTS = Dataset.from_dict({"prompt": ["the quick brown fox", "hello world"] * 32})
COMMON = {"per_device_train_batch_size": 32, "num_generations": 16, "max_completion_length": 8, "learning_rate": 0.02, "max_steps": STEPS,
          "lr_scheduler_type": "constant", "temperature": 1.0, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
          "save_strategy": "no", "report_to": "none", "logging_steps": 1, "disable_tqdm": True}
LORA = LoraConfig(r=8, lora_alpha=16, use_rslora=True, target_modules="all-linear")


def wants_small_tokens(completion_ids, **_):
    """A reward that a tiny model can learn in a few steps: the share of tokens in the lower half of the vocabulary."""
    return [sum(token < 256 for token in ids) / max(len(ids), 1) for ids in completion_ids]


# >>> Lorry
import lorry  # noqa: E402
from lorry.trl import GRPOTrainer  # noqa: E402

args = GRPOConfig(os.environ.get("OUTPUT", "out"), use_vllm=True, vllm_mode="server", vllm_server_base_url=os.environ["DOOR"], **COMMON)
with lorry.open_run("trl-policy") as run:
    trainer = GRPOTrainer(MODEL, wants_small_tokens, args, PROMPTS, peft_config=LORA, vllm_sync_strategy="lora_adapter", lorry_run=run)
    trainer.train()
# <<<
