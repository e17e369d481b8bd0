"""`lorry bench-sync` on fake engines: it measures each way, says what it found, and leaves the engine as it was."""

import contextlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import lorry
import pytest
from lorry.bench import __main__ as bench_main
from lorry.bench.report import Result, Row
from safetensors.numpy import load_file, save_file
from testing import engines
from testing.engines import KINDS

RUN_S = 240


@pytest.fixture(scope="module", params=KINDS)
def engine(tiny, request, tmp_path_factory):
    with engines.fake(request.param, tiny / "model", log_dir=tmp_path_factory.mktemp("engine")) as made:
        yield made


@pytest.fixture
def bench(bin_dir, tiny, tmp_path):
    def run(*words, adapter=tiny / "adapters" / "v1", rounds=2):
        environment = os.environ | {"LORRY_PYTHON": sys.executable, "PYTHONPATH": str(pathlib.Path(lorry.__file__).parents[1]), "TMPDIR": str(tmp_path)}
        command = [bin_dir / "lorry", "bench-sync", adapter, f"--rounds={rounds}", "--tokens", "4", *words]
        return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=RUN_S, check=False)

    return run


def test_each_way_is_measured_and_the_engine_is_as_before(engine, bench, tiny, tmp_path):
    prefix = "" if engine.kind == "sglang" else "/v1"
    assert engine.call("POST", f"{prefix}/load_lora_adapter", {"lora_name": "mine", "lora_path": str(tiny / "adapters" / "v2")})[0] == 200
    done = bench("--engine", engine.url, "--base-model", tiny / "model", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(way["path"], len(way["seconds"]), way["failed"]) for way in told["paths"]] == [
        ("lorry", 2, ""), ("file", 2, ""), ("merged", 2, "")]
    assert told["paths"][0]["ratio"] == 1 and told["adapter_tokens_per_s"] > 0 and told["base_tokens_per_s"] > 0
    assert "round 2 of 2" in done.stderr, "it says how far it is"
    assert list(engine.state()["listed"]) == ["mine"], "what was loaded is gone, and what others loaded is not"
    assert engine.state()["updates"] == [0, 0, 0, 0], "three rounds of merged weights, and the base model's again"
    assert list(tmp_path.iterdir()) == []


def test_without_the_base_model_merged_weights_are_not_touched(engine, bench):
    updates = engine.state()["updates"]
    done = bench("--engine", engine.url)
    assert done.returncode == 0, done.stderr
    assert "No advice on merged weights: they were not measured." in done.stdout
    assert engine.state()["updates"] == updates


def test_a_way_that_fails_says_so_in_its_row(engine, bench, tiny, tmp_path):
    """An adapter with a module that the checkpoint lacks is served, as far as a fake knows, and cannot be merged."""
    other = tmp_path / "other"
    shutil.copytree(tiny / "model", other)
    weights = load_file(other / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, other / "model.safetensors")
    updates = engine.state()["updates"]
    done = bench("--engine", engine.url, "--base-model", other, "--json")
    assert done.returncode == 0, done.stderr
    lorry_, file, merged = json.loads(done.stdout)["paths"]
    assert lorry_["seconds"] and file["seconds"] and not merged["seconds"]
    assert "model.layers.0.self_attn.q_proj of the adapter is no matrix of" in merged["failed"]
    assert engine.state()["updates"] == updates


def test_what_is_missing_is_said(bench, engine, tiny, tmp_path):
    done = bench("--engine", "http://127.0.0.1:9")
    assert done.returncode == 1 and done.stderr == (
        "lorry: BENCH_FAILED: nothing answers GET http://127.0.0.1:9/v1/models: Connection refused\n"
        "  → start the engine, or name where it listens by --engine\n")
    done = bench("--engine", engine.url, adapter=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(
        f"lorry: BENCH_FAILED: {tmp_path}/adapter_model.safetensors: No such file or directory\n  → name a directory"), done.stderr
    done = bench("--engine", engine.url, rounds=0)
    assert done.returncode == 2 and "write a number from 1" in done.stderr


@contextlib.contextmanager
def answering(status, body):
    """Its URL: a server that answers everything like that."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("status", "body", "said"), [
    (401, '{"error": {"message": "Invalid\\nkey", "code": 401}}', "was answered by 401: Invalid key\n  → bench-sync shows no key: "),
    (500, '{"detail": "out of memory"}', "was answered by 500: out of memory\n  → the engine's log says more\n"),
    (200, "<html>", "is neither SGLang nor vLLM\n  → name the engine itself by --engine"),
])
def test_what_an_engine_answers_is_told_in_its_words_with_what_to_do(bench, status, body, said):
    with answering(status, body) as url:
        done = bench("--engine", url)
        assert done.returncode == 1 and said in done.stderr and "{" not in done.stderr, done.stderr
        done = bench("--engine", url, "--json")
        told = json.loads(done.stderr)
        assert told["reason"] == "BENCH_FAILED" and told["remedy"], told


def test_words_of_grpc_are_not_the_users():
    told = bench_main._told(lorry.LorryError("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9", "", "UNAVAILABLE"))
    assert "ipv4" not in told["message"] and "run it again" in told["remedy"], told


def test_an_engine_without_lora_is_told(bench, tiny, tmp_path):
    with engines.fake("sglang", tiny / "model", log_dir=tmp_path, args=["--no-enable-lora"]) as engine:
        done = bench("--engine", engine.url)
        assert done.returncode == 1 and "ENGINE_LORA_DISABLED" in done.stderr, done.stderr


def test_without_the_python_client_it_says_what_to_install(bin_dir, tmp_path):
    """Far from a checkout, with a Python that has none."""
    alone = tmp_path / "lorry"
    shutil.copy(bin_dir / "lorry", alone)
    done = subprocess.run([alone, "bench-sync", tmp_path, "--engine", "9"], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, text=True,
                          capture_output=True, timeout=RUN_S, check=False)
    assert done.returncode == 1 and "PYTHON_CLIENT_MISSING" in done.stderr and "lorry_client-*.whl" in done.stderr, done.stderr


def result(lorry_s, merged_s, adapter_rate, base_rate):
    return Result("engine", "adapter", [Row("lorry", 1, [lorry_s]), Row("file", 1, [lorry_s]), Row("merged", 1, [merged_s])], adapter_rate, base_rate)


def test_the_advice_weighs_a_sync_against_what_tokens_cost():
    assert result(1, 11, 1000, 2000).break_even() == pytest.approx(20_000), "10 s a sync, 0.5 ms a token"
    assert "more than 20,000 tokens" in result(1, 11, 1000, 2000).advice()
    assert result(1, 11, 2000, 2000).break_even() is None
    assert "generate no faster" in result(1, 11, 2100, 2000).advice()
    assert result(2, 1, 2000, 2000).advice().startswith("Merged weights would be the better choice")


def test_a_python_is_not_tried_with_the_path_of_the_one_before(bin_dir, tmp_path):
    """A checkout whose environment is not made yet, before a Python that has the client."""
    (tmp_path / "clients/python/src/lorry/bench").mkdir(parents=True)
    (tmp_path / "build/x/bin").mkdir(parents=True)
    program = shutil.copy(bin_dir / "lorry", tmp_path / "build/x/bin/lorry")
    stub = tmp_path / "stub" / "python3"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "path $PYTHONPATH"\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{stub.parent}:/usr/bin:/bin", "PYTHONPATH": "mine", "HOME": str(tmp_path)}
    done = subprocess.run([program, "bench-sync", tmp_path, "--engine", "1"], env=environment, text=True, capture_output=True,
                          timeout=RUN_S, check=False)
    assert (done.returncode, done.stdout) == (0, "path mine\n"), done.stderr
