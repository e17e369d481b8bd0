"""Ranks of TRL's trainer on this machine's CPU, each a process, and a witness of what they train and are answered.

The kinds are those of TRL's own launch configs: "fsdp2" and "zero3"; "ddp" has a whole model on every rank.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testing import foreign
from testing.engines import ROOT
from testing.world import World

# Importing torch and TRL is most of what a rank does here: one process does it, and every rank is a fork of that one.
RANKS_OF = multiprocessing.get_context("forkserver")
RANKS_OF.set_forkserver_preload(["testing.trl_ranks_imports"])
RANKS = 2
DEADLINE_S = 240.0
ADAPTER_FILE = "adapter_model.safetensors"


def settings(world: World, model: pathlib.Path, output: pathlib.Path, steps: int) -> dict[str, str]:
    """The environment that examples/frameworks/use_trl.py reads."""
    addresses = world.fleet.addresses()
    return {"DOOR": world.fleet.door("vllm"), "MODEL": str(model), "OUTPUT": str(output), "STEPS": str(steps),
            "LORRY_STORE": addresses["store"], "LORRY_ORCHESTRATOR": addresses["orchestrator"]}


class Witness:
    """A callback of a trainer, on each rank: keeps each step's whole adapter in `folder`/v{step}, gathered by torch and by DeepSpeed
    themselves, and each generation: step, what was asked and what came, both with their headers.

    Fakes give all completions of a prompt the same tokens, of which nothing is learned: what the trainer sees of them differs.
    """

    def __init__(self, folder: pathlib.Path, writes: bool = True) -> None:
        self.step = -1
        self.generations: list[dict[str, Any]] = []
        self._folder, self._writes = folder, writes

    def attach(self, trainer: Any) -> None:
        from transformers import TrainerCallback

        trainer.add_callback(type("Callback", (TrainerCallback,), {"on_step_begin": lambda _, *args, model, **__: self._keep(args[1], model)})())
        trainer.vllm_importance_sampling_correction = False  # by the fakes' log-probabilities, which no model would give
        if trainer.accelerator.is_main_process:
            trainer.vllm_generation.vllm_client.session.hooks["response"].append(self._hear)

    def _keep(self, state: Any, model: Any) -> None:
        from safetensors.torch import save_file

        self.step, folder = state.global_step, self._folder / f"v{state.global_step}"
        whole = _gathered(model)
        if self._writes:
            model.peft_config["default"].save_pretrained(folder)
            save_file(whole, folder / ADAPTER_FILE, metadata={"format": "pt"})

    def _hear(self, reply: Any, *_: Any, **__: Any) -> None:
        if reply.request.path_url != "/v1/completions":
            return
        told = reply.json()
        self.generations.append({"step": self.step, "sent": dict(reply.request.headers), "headers": dict(reply.headers),
                                 "asked": json.loads(reply.request.body), "answer": reply.json()})
        for index, choice in enumerate(told["choices"]):
            choice["token_ids"][-1] = (choice["token_ids"][-1] + 37 * index) % 512
        reply._content = json.dumps(told).encode()


def _gathered(model: Any) -> dict[str, Any]:
    named = {name: p for name, p in model.named_parameters() if "lora_" in name}
    whole: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if any(hasattr(p, "ds_id") for p in named.values()):
        import deepspeed  # type: ignore[import-not-found]

        whole = deepspeed.zero.GatheredParameters(list(named.values()))
    with whole:
        return {name.replace(".default", "").replace("_checkpoint_wrapped_module.", ""): _whole(p) for name, p in named.items()}


def _whole(parameter: Any) -> Any:
    value = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return value.detach().clone().contiguous()


def run_ranks(job: Callable[[int, pathlib.Path], Any], kind: str, environment: Mapping[str, str], folder: pathlib.Path) -> list[Any]:
    """`job(rank, folder)` on every rank; what each returned.

    Raises:
        AssertionError: a rank failed, and with what.
    """
    foreign.add_packages()  # they have the path of this process
    results = RANKS_OF.Queue()
    ranks = [RANKS_OF.Process(target=_rank_main, args=(rank, job, kind, dict(environment), folder, results), daemon=True) for rank in range(RANKS)]
    try:
        for process in ranks:
            process.start()
        came = dict(results.get(timeout=DEADLINE_S) for _ in ranks)
    finally:
        for process in ranks:
            process.join(5)
            process.kill()
            process.join()
        for rank in range(RANKS):
            print((folder / f"rank{rank}.log").read_text())
    assert all(outcome == "ok" for outcome, _ in came.values()), came
    return [came[rank][1] for rank in range(RANKS)]


def judge(generations: Sequence[Mapping[str, Any]], folder: pathlib.Path, adapter: str, run: int) -> None:
    """Asserts that each asked for its step's version and was answered by the bytes that the witness has of it, and that they change."""
    from engine_core import expected_tokens  # of tests/fakes

    for heard in generations:
        step = heard["step"]
        assert heard["asked"]["model"] == adapter
        assert (heard["headers"]["X-Lorry-Version"], heard["sent"]["X-Lorry-Min-Version"]) == (str(step), f"r{run}.{step}")
        for choice in heard["answer"]["choices"]:
            wanted = expected_tokens(folder / f"v{step}", choice["prompt_token_ids"], len(choice["token_ids"]))
            assert choice["token_ids"] == wanted, f"announced {step}, and other bytes answered"
    assert len({heard["headers"]["X-Lorry-Digest"] for heard in generations}) > 1, "nothing is learned"


def _rank_main(
    rank: int, job: Callable[[int, pathlib.Path], Any], kind: str, environment: Mapping[str, str], folder: pathlib.Path, results: Any
) -> None:
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from torch import distributed, set_num_threads

        set_num_threads(1)
        os.environ |= _launched(kind) | environment
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
        # The ranks meet by a file, which needs no port that is free.
        distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS)
        if kind == "fsdp2":
            _shard_on_a_cpu()
        if kind == "zero3":
            _without_kernels()
        results.put((rank, ("ok", job(rank, folder))))
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:
        traceback.print_exc()
        results.put((rank, (type(error).__name__, str(error))))


def _launched(kind: str) -> dict[str, str]:
    """What `accelerate launch` puts into the environment of each rank."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
    from trl import accelerate_configs

    if kind == "ddp":
        return {}
    config = pathlib.Path(*accelerate_configs.__path__) / f"{kind}.yaml"
    words = [f"--config_file={config}", f"--num_processes={RANKS}", "--mixed_precision=no", "a-script"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    args.deepspeed_fields_from_accelerate_config = ""
    made: dict[str, str] = prepare_multi_gpu_env(args) if kind == "fsdp2" else prepare_deepspeed_cmd_env(args)[1]
    return {name: value for name, value in made.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


def _shard_on_a_cpu() -> None:
    """accelerate shards on accelerators alone, and on a CPU trains whole models: it takes this one for an accelerator."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    own = AcceleratorState.__init__

    def made(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        own(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin or self.fsdp_plugin

    AcceleratorState.__init__ = made


def _without_kernels() -> None:
    """DeepSpeed would compile one for the ranks' shared memory first."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


# --- Jobs of a rank ---


def train(rank: int, folder: pathlib.Path) -> dict[str, Any]:
    """The example, as a user runs it; what its witness heard, what this rank sent of each version, and how the model lay on it."""
    from lorry import trl as adopted
    from lorry.run import Run

    witness, sent, parts = Witness(folder, writes=rank == 0), {}, set()
    own_train, own_publish = adopted.GRPOTrainer.train, Run.publish

    def watched(trainer: Any) -> Any:
        witness.attach(trainer)
        return own_train(trainer)

    def publish(run: Any, source: Any, *, version: int) -> Any:
        if not sent:  # ZeRO-3 may keep what it has gathered once
            parts.update(type(p).__name__ + ("" if p.numel() else " without") for n, p in source.named_parameters() if ".base_layer." in n)
        handle = own_publish(run, source, version=version)
        assert version not in sent, "a version is published once"
        sent[version] = handle.bytes_total
        return handle

    adopted.GRPOTrainer.train, Run.publish = watched, publish  # type: ignore[method-assign]
    runpy.run_path(str(ROOT / "examples" / "frameworks" / "use_trl.py"))
    return {"generations": witness.generations, "sent": sent, "parts": sorted(parts)}


def fail(rank: int, folder: pathlib.Path) -> dict[str, str]:
    """What each failure of one rank is on this one; after them the trainer is sound."""
    import lorry
    from datasets import Dataset
    from lorry import trl as adopted
    from lorry.errors import LorryError
    from lorry.upload import Uploader
    from peft import LoraConfig
    from trl import GRPOConfig

    def trainer(run: Any, **settings: Any) -> Any:
        given = {"vllm_server_base_url": os.environ["DOOR"], "vllm_server_timeout": DEADLINE_S, **settings}
        args = GRPOConfig(os.environ["OUTPUT"], use_vllm=True, vllm_mode="server", use_cpu=True, bf16=False, report_to="none", **given)
        prompts = Dataset.from_dict({"prompt": ["a", "b"]})
        return adopted.GRPOTrainer(os.environ["MODEL"], len, args, prompts, peft_config=LoraConfig(), vllm_sync_strategy="lora_adapter",
                                   lorry_run=run)

    def raises(*_: Any, **__: Any) -> None:
        raise LorryError("its disk is full", "NO_SPACE")

    told: dict[str, str] = {}

    def note(what: str, act: Callable[[], Any]) -> None:
        try:
            act()
            told[what] = "ok"
        except Exception as error:
            told[what] = f"{type(error).__name__}: {error}"

    def on_one(what: str, owner: Any, name: str, act: Callable[[], Any]) -> None:
        """With the second rank's method failing."""
        own = getattr(owner, name)
        if rank == 1:
            setattr(owner, name, raises)
        note(what, act)
        setattr(owner, name, own)

    store = os.environ["LORRY_STORE"]
    if rank == 1:  # a node without a fleet's address, and without a `lorry up` of its own
        os.environ["XDG_STATE_HOME"] = str(folder)
        del os.environ["LORRY_STORE"]
    note("no address", lambda: lorry.open_run("trl-fails"))
    os.environ["LORRY_STORE"] = store
    note("opened alone", lambda: trainer(lorry.open_run("trl-fails", group=lorry.ALONE)))
    with lorry.open_run("trl-fails") as run:
        note("no door", lambda: trainer(run, vllm_server_base_url="http://127.0.0.1:9", vllm_server_timeout=0.1))
        sync = trainer(run).vllm_generation.sync_weights
        on_one("cannot publish", run, "publish", sync)
        on_one("cannot send", Uploader, "send", sync)
        note("sound again", sync)
        told["version"] = str(run.state_dict()["version"])
    return told
