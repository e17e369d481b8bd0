"""Memory that a fake engine has released, and weights that it was given."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

from engine_core import BASE_DIGEST, Adapter, Switches, die
from fastapi import FastAPI, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

KEPT, GONE, BASE = "kept", "gone", "base"


class Memory:
    def __init__(self, switches: Switches, tags: tuple[str, ...]):
        self.switches, self.tags = switches, tags
        self.released: set[str] = set()
        self.asked = 0  # of these
        self.releases: list[int] = []  # requests that were there, of each
        self.labels: dict[str, bool] = {}  # by what each says: whether it was to abort all requests
        self.updates: list[int] = []  # likewise, of each call that changes weights

    def release(self, tags: list[str] | None, registry: dict[str, Adapter], live: int) -> None:
        self.releases.append(live)
        self.released |= set(tags or self.tags)
        if "weights" not in self.released:
            return
        if self.switches.after_sleep == BASE:
            for adapter in registry.values():
                adapter.digest = BASE_DIGEST
        elif self.switches.after_sleep == GONE:
            registry.clear()

    def take(self, tags: list[str] | None) -> None:
        self.released -= set(tags or self.tags)

    def update(self, live: int) -> None:
        self.updates.append(live)

    def must_be_there(self, *tags: str) -> None:
        """Whoever uses memory that was given away reads and writes what is another's by now."""
        if self.released & set(tags or self.tags):
            die(self.switches, "CUDA error: an illegal memory access was encountered")

    def state(self) -> dict:
        return {"released": sorted(self.released), "asked": self.asked, "releases": self.releases, "updates": self.updates, "labels": self.labels}


def add_sglang_memory_routes(app: FastAPI, engine) -> None:
    async def tags_of(http: HttpRequest) -> list[str]:
        text = await http.body()
        return (json.loads(text).get("tags") if text else None) or list(engine.memory.tags)

    @app.api_route("/release_memory_occupation", methods=["GET", "POST"])
    async def release_memory(http: HttpRequest):
        tags, live = await tags_of(http), len(engine.scheduler.requests)
        if live:
            die(engine.switches, "release_memory_occupation should be called only when server is idle.")
        if set(tags) & engine.memory.released:
            die(engine.switches, "a region that is paused already")
        engine.memory.asked += 1
        while engine.switches.hold_releases:
            await asyncio.sleep(0.01)
        engine.memory.release(tags, engine.registry, live)

    @app.api_route("/resume_memory_occupation", methods=["GET", "POST"])
    async def resume_memory(http: HttpRequest):
        tags = await tags_of(http)
        if not set(tags) <= engine.memory.released:
            die(engine.switches, "KeyError of a tag that was not released")
        engine.memory.take(tags)

    @app.post("/update_weights_from_disk")
    @app.post("/update_weights_from_tensor")
    @app.post("/update_weights_from_distributed")
    async def update_weights(http: HttpRequest):
        body = await http.json()
        if body.get("model_path") == "missing":
            return JSONResponse({"success": False, "message": "no such model", "num_paused_requests": 0}, 400)
        engine.memory.must_be_there("weights")
        engine.memory.update(len(engine.scheduler.requests))
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    @app.post("/init_weights_update_group")
    async def init_weights_update_group(http: HttpRequest):
        await http.json()
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    @app.post("/update_weight_version")
    async def update_weight_version(http: HttpRequest):
        body = await http.json()
        version = body["new_version"]
        engine.memory.labels[version] = body.get("abort_all_requests", True)
        if engine.memory.labels[version]:
            await engine.scheduler.abort(lambda request: True)
        return {"success": True, "message": f"Weight version updated to {version}", "new_version": version}


def add_vllm_memory_routes(app: FastAPI, engine) -> None:
    @app.post("/sleep")
    async def sleep(level: int = 1, mode: str = "abort"):
        await engine.sleep(level, mode)
        return {"status": "sleeping", "level": level}

    @app.post("/wake_up")
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None):
        await engine.wake_up(tags)
        return {"status": "awake", "tags": tags}

    def change_weights() -> dict:
        engine.memory.must_be_there("weights")
        engine.memory.update(len(engine.scheduler.requests))
        return {}

    @app.post("/init_weight_transfer_engine")
    async def init_weight_transfer_engine(http: HttpRequest):
        await http.json()
        return {"message": "Weight transfer initialized"}

    @app.post("/start_weight_update")
    async def start_weight_update():
        return change_weights() | {"message": "Weight update started"}

    @app.post("/update_weights")
    async def update_weights(http: HttpRequest):
        if "update_info" not in await http.json():
            error = {"message": "Missing 'update_info'", "type": "BadRequestError", "code": 400}
            return JSONResponse({"error": error}, 400)
        return change_weights() | {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish_weight_update():
        return change_weights() | {"message": "Weight update finished"}

    @app.post("/areal_update_weights")
    async def areal_update_weights(http: HttpRequest):
        await http.json()
        return change_weights() | {"success": True, "message": "TP rank: 0 success\n"}

    @app.post("/collective_rpc")
    async def collective_rpc(http: HttpRequest):
        await http.json()
        return change_weights() | {"results": [None]}


def add_areal_routes(app: FastAPI, engine) -> None:
    """Of areal/engine/vllm_ext/areal_vllm_server.py, whatever vLLM's environment says."""

    @app.post("/areal_pause_generation")
    async def pause():
        await engine.pause("abort")
        return {"success": True, "message": "Generation paused and all requests aborted"}

    @app.post("/areal_continue_generation")
    async def resume():
        await engine.resume()
        return {"success": True, "message": "Generation continued"}
