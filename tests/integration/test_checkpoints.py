"""Checkpoints that hold an adapter alone: what a trainer keeps of its run, and adapters that leave as directories and come back."""

import json
import subprocess

import lorry
import pytest
from testing.engines import KINDS
from testing.world import ADAPTER


@pytest.fixture(scope="module")
def checkpoint(world, make_adapter):
    """What a trainer wrote down after step 80, as JSON; it went on until 100."""
    with world.open_run() as run:
        world.publish(run, 80, make_adapter(80))
        text = json.dumps(run.state_dict())
        for number in (81, 100):
            world.publish(run, number, make_adapter(number))
        assert run.state_dict() == {"adapter": ADAPTER, "run": run.number, "version": 100}
    return text


@pytest.fixture(scope="module")
def cli(world, bin_dir):
    def run(*words):
        at = ["--store", world.fleet.addresses()["store"]]
        return subprocess.run([bin_dir / "lorry", *words, *at], check=False, capture_output=True, text=True, timeout=120)

    return run


def test_a_trainer_resumes_at_80_after_100(world, checkpoint, make_adapter):
    state = json.loads(checkpoint)
    with world.open_run(resume_from=state) as run:
        assert run.number == state["run"] + 1
        assert run.state_dict() == state  # a second restart before the first version begins at 80, too
        world.publish(run, 81, make_adapter(1081))
        assert run.state_dict() == {"adapter": ADAPTER, "run": run.number, "version": 81}
        for member in KINDS:
            world.prove(world.doors[member].ask(ADAPTER), version=81, run=run.number)
        with world.open_run(resume_from=81) as next_run:  # of the run that is current until then
            assert next_run.state_dict() == {"adapter": ADAPTER, "run": run.number, "version": 81}
        with pytest.raises(lorry.RunFenced):
            run.publish(make_adapter(82), version=82).wait("stored", 30)


def test_what_is_not_stored_is_none_to_resume_from(world, checkpoint):
    with pytest.raises(lorry.LorryError, match="UNKNOWN_VERSION"):
        world.open_run(resume_from={**json.loads(checkpoint), "version": 96})


def test_what_peft_loads_and_saves_comes_back_as_the_same_content(world, checkpoint, cli, tiny, tmp_path):
    """publish → export → PEFT → import: one digest."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    run = json.loads(checkpoint)["run"]
    exported = cli("export", f"{ADAPTER}@r{run}.80", tmp_path / "out")
    assert exported.returncode == 0, exported.stderr
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny / "model")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "out", is_trainable=True)
    assert any(p.requires_grad for p in model.parameters())
    model.save_pretrained(tmp_path / "v7", save_embedding_layers=False)  # "auto" asks the hub
    imported = cli("import", tmp_path / "v7", "--adapter", "copy")
    assert imported.returncode == 0, imported.stderr
    (copy,) = world.admin.versions("copy")
    (first,) = (v for v in world.admin.versions(ADAPTER) if (v.run, v.number) == (run, 80))
    assert (copy.number, copy.digest) == (7, first.digest)


def test_an_export_replaces_nothing_unasked(checkpoint, cli, tmp_path):
    run = json.loads(checkpoint)["run"]
    assert cli("export", f"{ADAPTER}@r{run}.80", tmp_path).returncode == 0
    kept = (tmp_path / "adapter_model.safetensors").read_bytes()
    again = cli("export", f"{ADAPTER}@r{run}.100", tmp_path)
    assert again.returncode != 0
    assert "holds an adapter already" in again.stderr
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == kept
    assert cli("export", f"{ADAPTER}@r{run}.100", tmp_path, "--force").returncode == 0
    assert (tmp_path / "adapter_model.safetensors").read_bytes() != kept
