"""Every stage of the Dockerfile builds from exactly what it copies and installs, and its program runs as its user."""

import pytest
from sandbox import Sandbox

PROGRAMS = ("adapter-store", "sync-orchestrator", "engine-proxy", "lorry")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_every_library_in_its_image(images, name):
    image = images[name]
    sandbox = Sandbox(image.layers, user=image.user, read_only=True, drop_capabilities=True)
    libraries = sandbox.run(["ldd", *image.entrypoint])
    assert libraries.returncode == 0 and "not found" not in libraries.stdout, libraries.stdout + libraries.stderr
    argument = "help" if name == "lorry" else "--version"
    done = sandbox.run([*image.entrypoint, argument])
    assert done.returncode == 0, done.stderr
    assert "lorry" in done.stdout.lower() or name in done.stdout, done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_image_holds_neither_compiler_nor_sources(images, name):
    done = Sandbox(images[name].layers).run(["sh", "-c", "ls -d /src /usr/bin/c++ /usr/bin/cc1 /out 2>/dev/null | wc -l"])
    assert done.stdout.strip() == "0", done.stdout


def test_data_belongs_to_the_user(images):
    owner = images["runtime"].find("/data").stat()
    assert (owner.st_uid, owner.st_gid) == (65532, 65532) == (images["adapter-store"].user, images["runtime"].user)
