"""Environments as a stranger has them: made from registries and from what the packages hold, never from this checkout."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "uv" / "bin" / "uv"


class Environment:
    """A virtual environment, and commands in it that see nothing of the one that runs the tests."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LORRY_", "VIRTUAL_ENV"))}
        self.variables["PATH"] = f"{folder / 'bin'}:{self.variables['PATH']}"
        run([UV, "venv", "--quiet", "--seed", "--python", sys.executable, folder], env=self.variables)

    @property
    def python(self) -> pathlib.Path:
        return self.folder / "bin" / "python"

    def install(self, *arguments: object, cwd: pathlib.Path | None = None) -> None:
        run([UV, "pip", "install", "--quiet", "--python", self.python, *arguments], env=self.variables, cwd=cwd)

    def run(self, *command: object, **more: str) -> str:
        return run(command, env=self.variables | more, cwd=self.folder)


def run(command, env=None, cwd=None) -> str:
    """What it printed. Fails with all that it said."""
    done = subprocess.run([str(c) for c in command], env=env, cwd=cwd, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout
