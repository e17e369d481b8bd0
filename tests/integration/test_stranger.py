"""What has been run as root in a checkout, run where its user runs it: as somebody with an empty environment, no home and a root that is read-only."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys

import lorry
import pytest
from testing import stranger
from testing.engines import DEV_PYTHON, ROOT
from testing.processes import Mark
from testing.stranger import UID, Stranger
from testing.waiting import DEADLINE_S, until

WHY = stranger.missing()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
CLIENT = ROOT / "clients" / "python" / "src"


@pytest.fixture
def somebody(tmp_path):
    with Stranger(tmp_path / "scratch") as made:
        yield made


def says(who, argv, environment=None):
    """The exit status, and all that it printed."""
    done = subprocess.run([*who.enter(environment), *map(str, argv)], stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout


def python(script, *words):
    return [DEV_PYTHON, "-B", "-c", script, *map(str, words)]


@contextlib.contextmanager
def up(who, bin_dir, *words, environment=None):
    """What `lorry up --json` prints."""
    command = [*who.enter(environment), bin_dir / "lorry", "up", "--json", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


FINDS = "import lorry; print([a.name for a in lorry.Admin().adapters()])"


def test_who_has_a_home_but_no_variable_that_names_it_finds_its_fleet(bin_dir, tmp_path):
    """Service managers start programs so. The command line and Python look for the same file."""
    home = tmp_path / "scratch" / "home"
    with Stranger(tmp_path / "scratch", home) as who, up(who, bin_dir) as told:
        assert told["data_dir"] == f"{home}/.local/state/lorry/data"
        assert says(who, [bin_dir / "lorry", "adapters"])[0] == 0
        assert says(who, python(FINDS), {"PYTHONPATH": str(CLIENT)}) == (0, "[]\n")


def test_without_a_home_it_says_which_folders_to_name(somebody, bin_dir):
    code, text = says(somebody, [bin_dir / "lorry", "up"])
    assert code == 1 and "cannot be made" in text and "--data-dir" in text, text
    code, text = says(somebody, [bin_dir / "lorry", "up", f"--data-dir={somebody.scratch}/data"])
    assert code == 1 and "up.json cannot be written: Read-only file system; set XDG_STATE_HOME" in text, text
    with up(somebody, bin_dir, environment={"XDG_STATE_HOME": str(somebody.scratch)}):
        code, text = says(somebody, [bin_dir / "lorry", "status"], {"XDG_STATE_HOME": str(somebody.scratch)})
        assert code == 0, text


def test_a_token_of_another_user_is_named_before_anything_starts(somebody, bin_dir, tmp_path):
    secret = somebody.scratch / "token"
    secret.write_text("word\n")
    secret.chmod(0o600)
    code, text = says(somebody, [bin_dir / "lorry", "attach", "--engine=9", "--store=127.0.0.1:9", "--orchestrator=127.0.0.1:9",
                                 f"--token-file={secret}", f"--data-dir={somebody.scratch}/door"])
    assert code == 1 and f"INVALID_ARGUMENT: the file {secret} cannot be read" in text and "SERVICE_ENDED" not in text, text
    code, text = says(somebody, python("import sys, lorry; lorry.Admin(store='127.0.0.1:9', orchestrator='127.0.0.1:9', token_file=sys.argv[1]).adapters()",
                                       secret), {"PYTHONPATH": str(CLIENT)})
    assert code == 1 and "ARGUMENT_INVALID" in text and str(secret) in text, text


LIFE = """
import os, pathlib, signal, sys
import lorry
from testing import engines

model, adapters, program, killed = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4]
scratch = pathlib.Path(os.environ["TMPDIR"])
pair = [engines.fake(kind, model, log_dir=scratch) for kind in engines.KINDS]
with engines.running(*pair):
    with lorry.local([pair[0].url], program=program) as fleet, lorry.open_run("policy", **fleet.addresses()) as run:
        with lorry.attach(pair[1].url, **fleet.addresses(), program=program) as attached:
            assert run.publish(adapters / "v1", version=1).wait("serving", 60).active == 2
            assert len(list(pathlib.Path("/dev/shm").glob("lorry-*/claims/*"))) == 2
            if killed == "killed":
                for started in fleet, attached:
                    for pid in pathlib.Path(f"/proc/{started._process.pid}/task/{started._process.pid}/children").read_text().split():
                        if b"engine-proxy" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\\0")[0]:
                            os.kill(int(pid), signal.SIGKILL)
print("done")
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_fleet_beside_a_trainer_serves_and_leaves_nothing(somebody, bin_dir, tiny, tmp_path, how):
    """Nor where its proxies are killed: their locks in shared memory hold nothing any more, and go."""
    adapters = shutil.copytree(tiny / "adapters", tmp_path / "scratch" / "adapters")
    for path in [adapters, *adapters.rglob("*")]:
        os.chown(path, UID, UID)
    path = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "fakes", CLIENT)))
    code, text = says(somebody, python(LIFE, tiny / "model", adapters, bin_dir / "lorry", how),
                      {"TMPDIR": str(somebody.scratch), "PYTHONPATH": path})
    assert (code, text) == (0, "done\n"), text
    assert [str(left) for left in somebody.shared.rglob("*")] == []
    assert sorted({left.suffix for left in somebody.scratch.iterdir()} - {".log"}) == [""], "the adapters, and engines' logs"


def publish(told, adapter, number):
    addresses = {name: told[name] for name in ("store", "orchestrator", "token_file")}
    with lorry.open_run("policy", **addresses) as run:
        run.publish(adapter, version=number).wait("stored", DEADLINE_S)
    with lorry.Admin(**addresses) as admin:
        return sorted(version.number for version in admin.versions("policy"))


def back_up(data, copy, *enter):
    subprocess.run([*enter, ROOT / "deploy" / "backup", "--store", data / "adapter-store", "--orchestrator", data / "sync-orchestrator", copy],
                   check=True, capture_output=True)


def test_folders_that_are_mounted_read_only_are_backed_up(somebody, bin_dir, make_adapter, tmp_path):
    """While the services run elsewhere, and once they have ended."""
    data = somebody.scratch / "data"
    script = f'mount --bind {data} {data} && mount -o remount,bind,ro {data} && exec "$@"'
    enter = ["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh"]
    with up(somebody, bin_dir, f"--data-dir={data}", environment={"XDG_STATE_HOME": str(somebody.scratch)}) as told:
        assert publish(told, make_adapter(1), 1) == [1]
        back_up(data, tmp_path / "live", *enter)
    back_up(data, tmp_path / "rest", *enter)
    for copy in tmp_path / "live", tmp_path / "rest":
        with contextlib.closing(sqlite3.connect(copy / "store" / "catalog.db")) as records:
            assert records.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert records.execute("select count(*) from entries").fetchone()[0] > 0


def test_a_backup_that_root_makes_comes_back_to_the_services_user(somebody, bin_dir, make_adapter, tmp_path):
    """By the words of docs/OPERATIONS.md, which are run as they stand."""
    data, copy = somebody.scratch / "data", tmp_path / "copy"
    words, environment = [f"--data-dir={data}"], {"XDG_STATE_HOME": str(somebody.scratch)}
    with up(somebody, bin_dir, *words, environment=environment) as told:
        assert publish(told, make_adapter(1), 1) == [1]
        back_up(data, copy)
        assert copy.stat().st_uid == 0 and stat.S_IMODE(copy.stat().st_mode) == 0o700
        assert publish(told, make_adapter(2), 2) == [1, 2]
    (restore,) = re.findall(r"^(find /var/lib/lorry/store .*\ncp -a \S+ /var/lib/lorry/store/)$", (ROOT / "docs" / "OPERATIONS.md").read_text(), re.MULTILINE)
    for part, folder in ("store", "adapter-store"), ("orchestrator", "sync-orchestrator"):
        mine = re.sub(r"/backups/[^/]+/store", str(copy / part), restore).replace("/var/lib/lorry/store", str(data / folder))
        subprocess.run(["sh", "-ec", mine], check=True)
    with up(somebody, bin_dir, *words, environment=environment) as told:
        assert publish(told, make_adapter(2), 2) == [1, 2], "the run and version 2 are of after the copy, and are given again"
