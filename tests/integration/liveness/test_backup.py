"""A backup that is made while the fleet runs (deploy/backup), and what it means to put it back (docs/OPERATIONS.md)."""

import functools
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess

import lorry
import pytest
from testing.engines import ROOT
from testing.waiting import until
from testing.world import ADAPTER, Traffic

COMMAND = ROOT / "deploy/backup"


@pytest.fixture
def backup():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("deploy_backup", str(COMMAND))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def restore(world, copy):
    """As docs/OPERATIONS.md says: both are stopped, both folders are replaced, the store starts first."""
    services = world.fleet.store, world.fleet.orchestrator
    for service in services:
        service.kill()
        shutil.rmtree(service.data_dir)
    for service, name in zip(services, ("store", "orchestrator"), strict=True):
        shutil.copytree(copy / name, service.data_dir)
        service.start().wait_ready()


def command_line(world, *words):
    addresses = world.fleet.addresses()
    done = subprocess.run([world.fleet.store.binary.parent / "lorry", *words, f"--store={addresses['store']}",
                           f"--orchestrator={addresses['orchestrator']}"], text=True, capture_output=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_backup_of_a_fleet_that_runs_is_whole_and_comes_back(crowd, make_adapter, backup, monkeypatch, tmp_path):
    """Versions are stored, decided and deleted between all of its steps; none that it names lacks its image."""
    world = crowd("vllm-1")
    store, orchestrator = world.fleet.store, world.fleet.orchestrator
    with lorry.Admin(**world.fleet.addresses()) as admin, world.open_run() as run:
        admin.set_policy(ADAPTER, {"store_keep": 2})
        old, published = run.number, 0

        def goes_on():
            nonlocal published
            published += 1
            world.publish(run, published, make_adapter(published))

        def between(real, *paths):
            goes_on()
            real(*paths)
            goes_on()

        for step in "copy_database", "copy_images":
            monkeypatch.setattr(backup, step, functools.partial(between, getattr(backup, step)))
        goes_on()
        copy = tmp_path / "copy"
        backup.back_up(store.data_dir, orchestrator.data_dir, copy)
    assert published > 4, "at each step"

    with Traffic(world, workers=1) as traffic:
        restore(world, copy)
        until(lambda: "_LOST" in json.dumps(world.admin.status()), "status says that records are older than what was served")
        with lorry.Admin(**world.fleet.addresses()) as admin:
            kept = [version.number for version in admin.versions(ADAPTER)]
        assert kept, "the backup holds versions"
        for number in kept:
            status, said = command_line(world, "export", f"{ADAPTER}@r{old}.{number}", str(tmp_path / f"v{number}"))
            assert status == 0, said
        assert world.serves("vllm-1", published), "what is served is not asked of the records"
        traffic.check()
        until(lambda: command_line(world, "adopt", "--cluster=lorry", "--newest")[0] == 0, "what is left is adopted")
        with world.open_run() as run:
            world.publish(run, 1, make_adapter(published + 1))
            until(lambda: world.doors["vllm-1"].ask(ADAPTER).headers["x-lorry-run"] == str(run.number), "the new run is served")
    assert traffic.refused() <= {("vllm-1", "STALE_VERSION")}, "while the door serves what no record has any more"
    traffic.check("vllm-1")
    assert not traffic.broken


def test_images_are_copied_until_a_pass_is_short(backup, monkeypatch, tmp_path):
    source, target, real = tmp_path / "source", tmp_path / "target", backup.copy_images
    source.mkdir()
    (source / "b-1").touch()

    def while_another_comes(*paths):
        real(*paths)
        (source / "b-2").touch()

    monkeypatch.setattr(backup, "copy_images", while_another_comes)
    monkeypatch.setattr(backup, "SHORT_S", 0)
    backup.copy_most_images(source, target)
    assert {image.name for image in target.iterdir()} == {"b-1", "b-2"}


def test_a_copy_that_lacks_an_image_is_no_backup(crowd, make_adapter, backup, monkeypatch, tmp_path):
    """As where an image was deleted before the last pass came to it."""
    world = crowd("vllm-1")
    store, orchestrator, real = world.fleet.store, world.fleet.orchestrator, backup.copy_images
    with world.open_run() as run:
        for number in 1, 2:
            world.publish(run, number, make_adapter(number))
    lacks = sorted(image.name for image in (store.data_dir / "blobs/sealed").iterdir())[1]

    def all_but_one(source, target):
        real(source, target)
        (target / lacks).unlink(missing_ok=True)

    monkeypatch.setattr(backup, "copy_images", all_but_one)
    with pytest.raises(SystemExit, match=f"records name.*: {lacks}\\."):
        backup.back_up(store.data_dir, orchestrator.data_dir, tmp_path / "copy")


def test_the_command_makes_a_new_directory_of_its_own(crowd, make_adapter, tmp_path):
    world = crowd("vllm-1")
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
    words = [COMMAND, "--store", world.fleet.store.data_dir, "--orchestrator", world.fleet.orchestrator.data_dir, tmp_path / "copy"]
    done = subprocess.run(words, text=True, capture_output=True, timeout=60, check=True)
    assert done.stdout == f"{tmp_path / 'copy'}: 1 images\n"
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    again = subprocess.run(words, text=True, capture_output=True, timeout=60, check=False)
    assert again.returncode == 1 and "is there already" in again.stderr
