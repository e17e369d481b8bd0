"""AstraFlow's rollout engines with LoRA through Lorry: a loaded path is published, and requests name the version that is served.

    from lorry.astraflow import adopt

    adopt(engine, lorry.open_run("math-policy"), evals=[eval_engine])      # RaaS' SGLangEngine; its addresses are doors
    engine.load_weights_from_path(initial_lora, use_lora=True)             # requests name no adapter before, and doors refuse them

Follows Infini-AI-Lab/astraflow (astraflow/raas/engine/remote_inf_engine.py at a20ca42, of its pull request 20, which asks for the name that was loaded
last, and at 343e808, of main, which asks for ``lora_1`` once something was loaded), where an update is ``pause_generation``,
``load_weights_from_path(path, use_lora=True)`` and ``continue_generation``. Nothing is paused any more: what runs ends on its version, and a
paused engine could not show that it applies the next. Names are flipped once that is served, of the eval engines too, which share the servers. They
name the run with the number, so that no other run's version can answer: one RaaS process updates an adapter, as the run of a second one fences the first's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lorry.run import Run

SERVING_TIMEOUT_S = 300.0


def adopt(engine: Any, run: Run, evals: Sequence[Any] = (), timeout_s: float = SERVING_TIMEOUT_S) -> None:
    """Takes the place of what the engine does at its servers around an update of the adapter; full weights go as they went.

    Versions are numbered from 1 in each run, as AstraFlow's names are in each engine, and the adapter that training begins with counts. A load that fails once its version is on its way to the
    store has used up the number: the next one counts on, and until it is served requests name the version before.

    Args:
        engine: the SGLangEngine that is updated, or the RemoteInfEngine in it. ``evals``: those that ask by the same version.
        timeout_s: how long a version may take until engines serve it.
    """
    engine, *others = (getattr(each, "_engine", each) for each in (engine, *evals))
    own_load = engine.load_weights_from_path

    def name(number: int) -> str:
        return f"{run.adapter}@r{run.number}.{number}"

    published, served = 0, name(0)  # the last number, and what requests name

    def load(path: str, use_lora: bool = False) -> None:
        nonlocal published, served
        if not use_lora:
            own_load(path, use_lora)
            return
        handle = run.publish(path, version=published + 1)
        published += 1
        handle.wait("serving", timeout_s)
        served = name(published)
        for each in (engine, *others):
            each.lora_initialized, each._current_lora_name = True, served

    def named(own_build: Any) -> Any:
        def build(*args: Any, **kwargs: Any) -> Any:
            request = own_build(*args, **kwargs)
            if request.payload.get("lora_path"):
                request.payload["lora_path"] = served
            return request

        return build

    engine.load_weights_from_path = load
    engine.pause_generation = engine.continue_generation = _nothing
    for each in (engine, *others):
        each.backend.build_generation_request = named(each.backend.build_generation_request)


def _nothing() -> None:
    pass
