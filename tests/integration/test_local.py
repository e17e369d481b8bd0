"""`lorry.local` and `lorry.attach`: programs beside a trainer, which end with it, however it ends."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile

import lorry
import pytest
from testing import engines
from testing import fleet as services
from testing.doors import DoorClient
from testing.waiting import DEADLINE_S, until

SERVING_S = 60


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    with engines.running(*(engines.fake(kind, tiny / "model", log_dir=folder) for kind in engines.KINDS)) as made:
        yield {engine.kind: engine for engine in made}


@pytest.fixture(scope="module")
def program(bin_dir):
    return bin_dir / "lorry"


@pytest.fixture(scope="module")
def empty(program):
    """A fleet without an engine."""
    with lorry.local(program=program) as fleet:
        yield fleet


def programs_of(pid):
    """The process and its children that live."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if pid in (int(stat.parent.name), int(fields[1])) and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_fleet_beside_a_trainer_serves_and_leaves_nothing_behind(pair, program, make_adapter, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = pair["vllm"].url
    with lorry.local([url], program=program) as fleet:
        started = programs_of(fleet._process.pid)
        assert len(started) == 4, "lorry, a store, an orchestrator and a proxy"
        with lorry.open_run("policy", **fleet.addresses()) as run:
            assert run.publish(make_adapter(1), version=1).wait("serving", SERVING_S).active == 1
        assert DoorClient("vllm", fleet.doors[url]).ask("policy").version == 1
        done = subprocess.run([program, "status"], env=os.environ | fleet.environment(), text=True, capture_output=True, check=False)
        assert done.returncode == 0 and "policy" in done.stdout, done
        scratch = pathlib.Path(fleet.token_file).parents[2]
        assert scratch.is_dir()
    assert not scratch.exists()
    assert [pid for pid in started if os.path.exists(f"/proc/{pid}")] == []
    fleet.close()  # again does nothing
    assert list(tmp_path.iterdir()) == [], "what the user's own `lorry up` wrote would be untouched"


@pytest.mark.parametrize("verb", [["status"], ["status", "--json"], ["engines"], ["watch", "--once"]])
def test_no_pool_is_known_where_nothing_has_come_yet(empty, program, verb):
    done = subprocess.run([program, *verb, "--pool", "rollout"], env=os.environ | empty.environment(), text=True, capture_output=True,
                          check=False)
    assert done.returncode == 1 and not done.stdout and "UNKNOWN_POOL" in done.stderr, done
    assert "no engine and no policy names a pool rollout, nor any other yet" in done.stderr, done


def shared(engine):
    """What is left of the adapters that proxies of this user wrote for the engine."""
    return [path for path in pathlib.Path(f"/dev/shm/lorry-{os.geteuid()}/engine-{engine.port}").rglob("*") if path.is_file()]


def publish(fleet, adapter):
    with lorry.open_run("policy", **fleet.addresses()) as run:
        run.publish(adapter, version=1).wait("serving", SERVING_S)


def test_of_an_engine_that_has_ended_nothing_stays_in_shared_memory(tiny, program, make_adapter, tmp_path):
    with engines.running(engines.fake("vllm", tiny / "model", log_dir=tmp_path)) as (engine,):
        with lorry.local([engine.url], program=program) as fleet:
            publish(fleet, make_adapter(1))
            assert shared(engine)
            engine.stop()  # a moment ago, of which the proxy may have noticed nothing yet
        assert not shared(engine)


def test_a_fleet_passes_flags_on_to_its_proxies(tiny, program, make_adapter, tmp_path):
    """The key of an engine that asks for one, say."""
    key = tmp_path / "engine.key"
    key.write_text("sesame\n")
    with engines.running(engines.fake("vllm", tiny / "model", log_dir=tmp_path, args=["--api-key", "sesame"])) as (engine,):
        with lorry.local([engine.url], program=program) as fleet, lorry.Admin(**fleet.addresses()) as admin:
            until(lambda: "--engine-key-file" in str(admin.status()), "it says which flag takes the key", DEADLINE_S)
        with lorry.local([engine.url], program=program, proxy_flags=[f"--engine-key-file={key}"]) as fleet:
            publish(fleet, make_adapter(1))


@pytest.mark.parametrize(("flag", "said"), [("engine-key-file=x", "is no flag"), ("--", "is no flag"), ("--member=x", "--member itself"),
                                            ("--data_dir=x", "--data-dir itself"), ("--nobase_model_unchecked", "--base-model-unchecked itself")])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("verb", ["up", "attach"])
def test_what_a_fleet_gives_its_proxies_itself_is_not_passed_on(program, tmp_path, verb, flag, said, apart):
    words = ["--proxy-flag", flag] if apart else [f"--proxy-flag={flag}"]
    done = subprocess.run([program, verb, "--engine=9", f"--data-dir={tmp_path}", *words], text=True, capture_output=True,
                          timeout=SERVING_S, check=False)
    assert done.returncode == 2 and said in done.stderr, done
    assert ("itself" in said) == ("Several hosts without Kubernetes" in done.stderr), "and where the page is that says how"
    assert list(tmp_path.iterdir()) == [], "before anything was started"


def test_the_way_back_names_where_the_engines_files_are(pair, program, make_adapter):
    with lorry.local([pair["vllm"].url], program=program) as fleet:
        publish(fleet, make_adapter(1))
        done = subprocess.run([program, "detach"], env=os.environ | fleet.environment(), text=True, capture_output=True, check=False)
        named = done.stdout.partition("/dev/shm/lorry-UID/")[2].split()[0]
        assert named == f"engine-{pair['vllm'].port}" and shared(pair["vllm"]), done


def test_an_attached_door_follows_the_token_of_its_fleet(pair, program, monkeypatch, tmp_path):
    """`lorry up` draws another one each time, and whoever has it commands the doors on this machine, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def up():
        started = subprocess.Popen([program, "up", "--json", "--until-stdin-ends"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        token = json.loads(started.stdout.readline())["token_file"]
        return started, pathlib.Path(token).read_text()

    def end(fleet):
        fleet.stdin.close()
        assert fleet.wait(DEADLINE_S) == 0
        fleet.stdout.close()

    fleet, first = up()
    try:
        with lorry.attach(pair["vllm"].url, program=program, data_dir=tmp_path / "door"):
            end(fleet)
            fleet, second = up()
            assert first != second
            drain = [program, "drain", f"engine-{pair['vllm'].port}"]
            until(lambda: subprocess.run(drain, capture_output=True, check=False).returncode == 0, "it takes the new token", DEADLINE_S)
    finally:
        end(fleet)


def test_a_token_file_that_is_empty_for_a_moment_opens_no_door(pair, program, bin_dir, tmp_path):
    """It may be just replaced, and a proxy keeps for life whether it asks for a token."""
    (tmp_path / "token").touch()
    with (services.Fleet(bin_dir, tmp_path, {}) as fleet,
          lorry.attach(pair["vllm"].url, program=program, token_file=tmp_path / "token", **fleet.addresses()) as attached):
        with lorry.Admin(**fleet.addresses()) as admin:
            until(lambda: [m["state"] for m in admin.status().get("members", [])] == ["READY"], "it is attached", DEADLINE_S)
        done = subprocess.run([program, "drain", f"engine-{pair['vllm'].port}"], env=os.environ | attached.environment() | {"LORRY_TOKEN_FILE": ""},
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode != 0 and "UNAUTHENTICATED" in done.stderr, done


def test_a_door_of_services_that_ask_for_no_token_asks_for_none(pair, program, bin_dir, tmp_path):
    """Nobody would have one to show it."""
    with services.Fleet(bin_dir, tmp_path, {}) as fleet, lorry.attach(pair["vllm"].url, program=program, **fleet.addresses()) as attached:
        environment = os.environ | attached.environment()
        drain = [program, "drain", f"engine-{pair['vllm'].port}"]
        with lorry.Admin(**fleet.addresses()) as admin:
            until(lambda: [m["state"] for m in admin.status().get("members", [])] == ["READY"], "it is attached", DEADLINE_S)
        done = subprocess.run(drain, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done


def test_the_loop_of_the_readme_rolls_out_its_own_run_alone(pair, program, make_adapter, monkeypatch):
    """Before its first version is served, a run is answered for by the one before."""
    (loop,) = re.findall(r"## In a trainer\n.*?```python\n(.*?)```", (engines.ROOT / "README.md").read_text(), re.DOTALL)
    url, answered = pair["vllm"].url, []
    with lorry.local(url, program=program) as fleet:
        door = DoorClient("vllm", fleet.doors[url])
        for name, value in fleet.environment().items():
            monkeypatch.setenv(name, value)
        with lorry.open_run("math-policy") as run:
            run.publish(make_adapter(99), version=999).wait("serving", SERVING_S)

        def train(model):
            answer = door.ask("math-policy")
            answered.append((answer.run, answer.version))

        exec(loop, {"model": make_adapter(1), "train": train, "range": lambda *bounds: list(range(*bounds))[:2]})
        assert answered == [(2, 0), (2, 1)]


NOTEBOOK = """
import sys, lorry
with lorry.local([sys.argv[1]], program=sys.argv[2]) as fleet, lorry.open_run("policy", **fleet.addresses()) as run:
    run.publish(sys.argv[3], version=1).wait("serving", 60)
print("closed", flush=True)
sys.stdin.read()
"""


def test_what_an_engine_may_read_again_goes_when_both_have_ended(tiny, program, make_adapter, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(lorry.__file__).parents[1])}
    with engines.running(engines.fake("vllm", tiny / "model", log_dir=tmp_path)) as (engine,):
        notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK, engine.url, str(program), str(make_adapter(1))],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        with notebook:
            assert notebook.stdout.readline() == "closed\n"
            assert shared(engine), "the engine has it loaded from there"
            engine.stop()
            notebook.stdin.close()
            assert notebook.wait(DEADLINE_S) == 0
        assert not shared(engine)


def test_a_fleet_takes_away_what_is_its_own_alone(tiny, program, make_adapter, tmp_path):
    """Beside what a fleet of another directory left, which that one goes on with."""
    with engines.running(engines.fake("sglang", tiny / "model", log_dir=tmp_path)) as (engine,):
        with lorry.local([engine.url], program=program, data_dir=tmp_path / "kept") as fleet:
            publish(fleet, make_adapter(1))
        kept = set(shared(engine))
        assert kept
        with lorry.local([engine.url], program=program):
            pass
        assert set(shared(engine)) == kept
        with lorry.local([engine.url], program=program, data_dir=tmp_path / "kept") as fleet:
            door = DoorClient("sglang", fleet.doors[engine.url])
            until(lambda: door.ask("policy").status == 200, "it serves what it served", DEADLINE_S)
            assert door.ask("policy").version == 1


def test_versions_stay_where_a_directory_is_named(pair, program, make_adapter, tmp_path):
    for number in (1, 2):
        with lorry.local([pair["vllm"].url], program=program, data_dir=tmp_path) as fleet:
            with lorry.open_run("policy", **fleet.addresses()) as run:
                run.publish(make_adapter(number), version=number).wait("stored", SERVING_S)
            with lorry.Admin(**fleet.addresses()) as admin:
                assert sorted(v.number for v in admin.versions("policy")) == list(range(1, number + 1))


def test_an_engine_is_attached_to_services_that_run_and_detached_again(pair, program, make_adapter):
    first, second = pair["vllm"].url, pair["sglang"].url
    with lorry.local([first], program=program) as fleet, lorry.open_run("policy", **fleet.addresses()) as run:
        with lorry.attach(second, **fleet.addresses(), program=program) as attached, lorry.Admin(**fleet.addresses()) as admin:
            (door,) = attached.doors.values()
            until(lambda: {m["state"] for m in admin.status()["members"]} == {"READY"} and len(admin.status()["members"]) == 2,
                  "both are members", DEADLINE_S)
            assert run.publish(make_adapter(2), version=1).wait("serving", SERVING_S).active == 2
            assert DoorClient("sglang", door).ask("policy").version == 1
        with lorry.Admin(**fleet.addresses()) as admin:
            until(lambda: len(admin.status()["members"]) == 1, "the door said goodbye", DEADLINE_S)
        assert pair["sglang"].is_running()
        assert run.publish(make_adapter(3), version=2).wait("serving", SERVING_S).active == 1


TRAINER = """
import signal, sys, lorry
fleet = lorry.local([sys.argv[1]], program=sys.argv[2])
print(fleet._process.pid, flush=True)
signal.pause()
"""


def a_trainer(script, *words, tmp):
    """A Python of its own, whose temporary folders are made in ``tmp``."""
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(lorry.__file__).parents[1]), "TMPDIR": str(tmp)}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, words)], stdout=subprocess.PIPE, text=True, env=environment)


def test_it_ends_with_a_trainer_that_is_killed(pair, program, monkeypatch, tmp_path):
    """And what that one could not remove any more the next fleet removes, but nothing of fleets that live."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with lorry.local([], program=program) as living, a_trainer(TRAINER, pair["vllm"].url, program, tmp=tmp_path) as trainer:
        of_living = set(tmp_path.iterdir())
        pid = int(trainer.stdout.readline())
        started = programs_of(pid)
        assert len(started) == 4
        trainer.send_signal(signal.SIGKILL)
        until(lambda: [p for p in started if pathlib.Path(f"/proc/{p}/cmdline").exists() and p in programs_of(p)] == [],
              "all of them end", DEADLINE_S)
        assert len(set(tmp_path.iterdir()) - of_living) == 1, "the store's images among it"
        with lorry.local([], program=program) as next_one:
            assert {pathlib.Path(fleet.token_file).parents[2] for fleet in (living, next_one)} == set(tmp_path.iterdir())
        assert set(tmp_path.iterdir()) == of_living
    assert not list(tmp_path.iterdir())


FORKING = """
import os, sys, lorry
program, adapter, closes = sys.argv[1:]
fleet = lorry.local([], program=program)
child = os.fork()
if child == 0:
    if closes == "yes":
        fleet.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with lorry.open_run("policy", **fleet.addresses()) as run:
    run.publish(adapter, version=1).wait("stored", 60)
print(os.listdir(os.environ["TMPDIR"]), flush=True)
"""


ADDRESSES_ALONE = """
import gc, http.client, sys, lorry
engine, program, adapter = sys.argv[1:]
with lorry.open_run("policy", **lorry.local([], program=program).addresses()) as run:
    gc.collect()
    run.publish(adapter, version=1).wait("stored", 60)
door = lorry.local([engine], program=program).doors[engine]
gc.collect()
answered = http.client.HTTPConnection(door.removeprefix("http://"), timeout=60)
answered.request("GET", "/health")
print(answered.getresponse().status in (200, 503), flush=True)  # 503 until it has looked at its engine
"""


def test_it_runs_on_where_its_addresses_alone_are_kept(pair, program, make_adapter, tmp_path):
    """And ends with the process, as nobody can close it any more."""
    with a_trainer(ADDRESSES_ALONE, pair["vllm"].url, program, make_adapter(1), tmp=tmp_path) as trainer:
        assert trainer.stdout.read() == "True\n"
        assert trainer.wait(DEADLINE_S) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("closes", ["yes", "no"])
def test_a_forked_child_removes_nothing_of_its_parent(program, make_adapter, tmp_path, closes):
    """Whether it ends by itself or out of a with block; and a script that closes nothing leaves nothing."""
    with a_trainer(FORKING, program, make_adapter(1), closes, tmp=tmp_path) as trainer:
        assert "lorry-local-" in trainer.stdout.read()
        assert trainer.wait(DEADLINE_S) == 0
    assert not list(tmp_path.iterdir())


def test_a_forked_worker_does_not_keep_it_alive(pair, program):
    fleet = lorry.local([pair["vllm"].url], program=program)
    worker = os.fork()
    if worker == 0:
        signal.pause()
        os._exit(0)
    try:
        pid = fleet._process.pid
        assert programs_of(pid)
        fleet._process.stdin.close()  # what the end of this process does
        until(lambda: programs_of(pid) == [], "it ends", DEADLINE_S)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        fleet.close()


@pytest.fixture
def many_descriptors():
    """As of a trainer that has a thousand files open: the next descriptor has a number above 1100."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] <= 1100:
        opened.append(os.dup(opened[0]))
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_starts_in_a_process_with_many_descriptors(program, many_descriptors):
    with lorry.local([], program=program) as fleet:
        assert fleet.store


def test_one_engine_needs_no_list(pair, program):
    """A text alone is one, and no sequence of letters; as is a flag for the proxies."""
    url = pair["vllm"].url
    with lorry.local(url, program=program, proxy_flags="--door-allow-unknown-routes") as fleet:
        assert list(fleet.doors) == [url]


def test_a_service_that_ends_is_told_in_words_with_its_log(pair, program, monkeypatch, tmp_path):
    """Where no directory was named the log stays until the next fleet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(lorry.LorryError) as failed:
        lorry.local(pair["vllm"].url, program=program, proxy_flags=["--nonsense=1"])
    said = str(failed.value)
    assert failed.value.reason == "SERVICE_ENDED" and "`lorry up` did not start: " in said and "{" not in said, said
    log = pathlib.Path(said.partition("its log is ")[2].split()[0])
    assert "nonsense" in log.read_text() and "nonsense" in said, said
    with lorry.local([], program=program):
        assert not log.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_fleet_that_is_not_ready_in_time_says_where_to_look(pair, program, tmp_path):
    with pytest.raises(lorry.LorryError, match=r"`lorry up` is not ready after 0 s: read the logs in .*, or give it more time by timeout_s=") as late:
        lorry.local([], program=program, timeout_s=0, data_dir=tmp_path)
    assert late.value.reason == "SERVICE_NOT_READY" and f"{tmp_path}/logs" in str(late.value)


def test_what_does_not_start_says_why(program, tmp_path):
    with pytest.raises(lorry.LorryError, match=r"^USAGE: `lorry up` did not start: --engine=nonsense is no engine; write http[^{}]*$"):
        lorry.local("nonsense", program=program)
    with pytest.raises(lorry.LorryError, match="cannot be made"):
        file = tmp_path / "file"
        file.write_text("")
        lorry.local([], program=program, data_dir=file / "data")
    with pytest.raises(lorry.LorryError, match="name the services"):
        lorry.attach("http://127.0.0.1:1", program=program, data_dir=tmp_path / "door")
    with pytest.raises(FileNotFoundError):
        lorry.local([], program=tmp_path / "none")


def test_detach_says_how_to_go_back(pair, program, make_adapter, monkeypatch, tmp_path):
    """Of `lorry up` it knows the engine; an engine attached elsewhere is the user's to name. What it prints works."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = pair["vllm"], pair["sglang"]

    def lorry_says(*words):
        return subprocess.run([program, *words], env=os.environ, text=True, capture_output=True, timeout=DEADLINE_S, check=False)

    up = subprocess.Popen([program, "up", "--json", "--until-stdin-ends", "--engine", first.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout.readline()
        assert "is attached" in lorry_says("detach", "nobody").stderr
        with lorry.attach(second.url, program=program) as attached, lorry.Admin() as admin, lorry.open_run("policy") as run:
            until(lambda: [m["state"] for m in admin.status().get("members", [])] == ["READY"] * 2, "both are READY", DEADLINE_S)
            run.publish(make_adapter(7), version=1).wait("serving", SERVING_S)
            said = {told["member"]: told for told in map(json.loads, lorry_says("detach", "--json").stdout.splitlines())}
            by_engine = {told["engine"]: told for told in said.values()}
            mine, other = by_engine[first.url], by_engine[""]
            assert other["door"] == attached.doors[second.url]
            assert mine["loaded"] == [mine["answering"]["policy"]] and mine["loaded"][0] in first.state()["listed"]
            text = lorry_says("detach", mine["member"]).stdout
            assert other["member"] not in text and f"send clients to {first.url} instead of {mine['door']}" in text
            assert "Ctrl-C of `lorry attach`" in lorry_says("detach", other["door"]).stdout
            everything = lorry_says("detach").stdout
            assert everything.count("  1. stop publishing, or take a lease") == everything.count("       lorry lease policy --pool rollout --ttl 1h\n") == 2
            assert everything.count("lorry drain ") == 2
            for member in mine["member"], other["member"]:
                drained = lorry_says("drain", member)
                assert drained.returncode == 0, drained
    finally:
        up.stdin.close()
        assert up.wait(DEADLINE_S) == 0
        up.stdout.close()
    assert mine["loaded"][0] in first.state()["listed"], "the engine goes on with what it has"
    (curl,) = [line.strip() for line in text.splitlines() if "curl" in line]
    subprocess.run(["sh", "-c", curl], check=True, capture_output=True, timeout=DEADLINE_S)
    assert mine["loaded"][0] not in first.state()["listed"]
