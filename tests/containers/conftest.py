"""The images of deploy/Dockerfile, built once, and nodes to run them on."""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(TESTS / "fakes"))

from engine_core import expected_tokens  # noqa: E402
from images import Builder  # noqa: E402
from node import Node  # noqa: E402
from testing import engines  # noqa: E402

# What the Python client is given of a trainer's certificate.
CLIENT = {"ca_file": "ca.crt", "cert_file": "trainer.crt", "key_file": "trainer.key"}


@pytest.fixture(scope="session")
def images():
    """Stage → Image."""
    return Builder(pathlib.Path(os.environ["LORRY_CONTAINERS_DIR"])).build()


@pytest.fixture(scope="session")
def tiny():
    """tools/engines/tiny_model.py: model/, adapters/."""
    return engines.tiny_model()


@pytest.fixture
def make_node(tmp_path):
    """make_node(family): a fresh node, whose containers end with the test. A failure shows what they said."""
    made = []

    def make(family: str) -> Node:
        tmp_path.chmod(0o755)
        made.append(Node(tmp_path, family))
        return made[0]

    yield make
    for node in made:
        node.print_logs()
        node.close()


@pytest.fixture
def judge():
    """judge(answer, folder, version): a door's 200 names the version, and the engine had loaded its bytes."""

    def check(answer: dict, folder: pathlib.Path, version: int) -> None:
        assert answer["status"] == 200, answer
        assert answer["headers"]["x-lorry-version"] == str(version)
        assert answer["tokens"] == expected_tokens(folder, answer["prompt"], len(answer["tokens"]))

    return check
