"""What is packed where it was trained is what is copied tensor by tensor. The GPU is the CPU: the library runs the kernels there.

On a machine with a GPU tests/gpu/run names the library for CUDA, and all of it is about that.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pathlib
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch
import xxhash

from lorry import gpu, programs, upload
from lorry.connection import Connection
from lorry.errors import Cancelled, LorryError, Refused
from lorry.gpu import LEAF_BYTES, Packer, find_packer
from lorry.image import BufferPool, Image, Shard, build
from lorry.mover import Movers
from lorry.programs import find_library
from lorry.run import _fingerprint
from lorry.store.v1 import store_pb2
from lorry.upload import _chunk

MODULE = "base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.weight"


@pytest.fixture
def library() -> str:
    path = os.environ.get("LORRY_GPU_TESTED", "")
    if not path:
        pytest.skip("LORRY_GPU_TESTED names no library")
    return path


@pytest.fixture
def packer(library: str) -> Packer:
    return Packer(library)


def adapter(packer: Packer, layers: int, dtype: torch.dtype = torch.float32, r: int = 8, width: int = 3000) -> dict[str, torch.Tensor]:
    torch.manual_seed(layers)
    state = {}
    for layer in range(layers):
        for name in "qkvo":
            state[MODULE.format(layer, name, "A")] = torch.randn(r, width).to(dtype)
            state[MODULE.format(layer, name, "B")] = torch.randn(width, r).to(dtype)
    return on(packer, state)


def on(packer: Packer, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(packer._kind) for name, tensor in state.items()}


def landed(image: Image) -> bytes:
    image.check()
    image.wait(image.data.nbytes)
    image.close()
    return image.data.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [None, "bfloat16"])
def test_the_image_its_checksums_and_its_fingerprint_are_the_same(packer: Packer, dtype: torch.dtype, cast: str | None) -> None:
    state = adapter(packer, 8, dtype)
    plain, packed = (build(state, 0, 1, BufferPool(), dtype=cast, packer=p) for p in (None, packer))
    assert packed.packing is not None and plain.packing is None
    assert landed(packed) == plain.data.tobytes()
    assert packed.pieces == plain.pieces
    size = packed.data.nbytes
    expected = [xxhash.xxh3_128_digest(packed.data[at : at + LEAF_BYTES].data) for at in range(0, size, LEAF_BYTES)]
    assert packed.leaves() == b"".join(expected)
    assert packed.packing.leaf(0) is None, "the header is not on the GPU"
    assert packed.packing.leaf(1) == expected[1]
    assert _fingerprint(packed) == _fingerprint(plain)


def test_a_cast_is_torchs_whatever_holds_the_tensor(packer: Packer) -> None:
    state = on(packer, {MODULE.format(0, "q", "A"): torch.randn(8, 100), MODULE.format(0, "q", "B"): torch.randn(50, 8).half() * 1e-6})
    wanted = build({name: t.bfloat16() for name, t in state.items()}, 0, 1, BufferPool()).data.tobytes()
    assert landed(build(state, 0, 1, BufferPool(), dtype="bfloat16", packer=packer)) == wanted
    assert build(state, 0, 1, BufferPool(), dtype="bfloat16").data.tobytes() == wanted
    arrays = {name: t.cpu().numpy() for name, t in state.items()}
    assert build(arrays, 0, 1, BufferPool(), dtype="bfloat16").data.tobytes() == wanted
    with pytest.raises(ValueError, match="bfloat16"):
        build(state, 0, 1, BufferPool(), dtype="float16")


def test_views_that_are_not_contiguous_are_gathered(packer: Packer) -> None:
    big = torch.randn(64, 999).to(packer._kind)
    state = {MODULE.format(0, "q", "A"): big[:8, 1::2], MODULE.format(0, "q", "B"): big.t()[3:50, :8],
             MODULE.format(0, "k", "A"): big[0:1].expand(8, 999), MODULE.format(0, "k", "B"): big[:, 5:13]}
    packed = build(state, 0, 1, BufferPool(), packer=packer)
    assert packed.packing is not None
    assert landed(packed) == build(state, 0, 1, BufferPool()).data.tobytes()


def test_ranks_pack_their_own_pieces(packer: Packer) -> None:
    state = adapter(packer, 4)
    whole = np.frombuffer(build(state, 0, 1, BufferPool()).data.tobytes(), dtype=np.uint8)
    covered = 0
    for rank in range(3):
        image = build(state, rank, 3, BufferPool(), packer=packer)
        assert image.packing is not None
        landed(image)
        assert image.leaves() is None, "some are of other ranks"
        for piece in image.pieces:
            assert (image.data[piece.offset : piece.offset + piece.length] == whole[piece.offset : piece.offset + piece.length]).all()
            covered += piece.length
    assert covered == len(whole) - len(image.header)


def test_rows_of_a_shard_are_packed_and_columns_are_copied(packer: Packer) -> None:
    a = torch.randn(8, 300).to(packer._kind)
    other = on(packer, {MODULE.format(0, "q", "B"): torch.randn(40, 8)})
    rows = {MODULE.format(0, "q", "A"): Shard(a[2:5], (8, 300), (2, 0)), **other}
    columns = {MODULE.format(0, "q", "A"): Shard(a[:, 10:20], (8, 300), (0, 10)), **other}
    packed, plain = build(rows, 0, 1, BufferPool(), packer=packer), build(rows, 0, 1, BufferPool())
    assert packed.packing is not None and packed.pieces == plain.pieces
    landed(packed)
    for piece in plain.pieces:
        span = slice(piece.offset, piece.offset + piece.length)
        assert (packed.data[span] == plain.data[span]).all()
    assert build(columns, 0, 1, BufferPool(), packer=packer).packing is None


def test_what_is_not_all_on_the_gpu_is_copied(packer: Packer) -> None:
    name = MODULE.format(0, "q", "A")
    for odd in (np.zeros((8, 4), dtype=np.float32), torch.zeros(8, 4, dtype=torch.float64)):
        image = build({name: odd, MODULE.format(0, "q", "B"): torch.zeros(4, 8).to(packer._kind)}, 0, 1, BufferPool(), packer=packer)
        assert image.packing is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_step_is_refused_before_anything_is_sent(packer: Packer, value: float) -> None:
    state = adapter(packer, 3)
    name = MODULE.format(1, "v", "B")
    state[name][2999, 7] = value
    image = build(state, 0, 1, BufferPool(), packer=packer)
    with pytest.raises(Refused, match="layers.1.self_attn.v_proj.lora_B") as refused:
        image.check()
    assert refused.value.reason == "TENSOR_NOT_FINITE"
    with pytest.raises(Refused):
        image.wait(image.data.nbytes)
    memory = weakref.ref(image.data)
    image.release()
    assert memory() is None, "whoever holds the refusal would hold it"
    assert landed(build(adapter(packer, 3), 0, 1, BufferPool(), packer=packer)), "the next version is packed again"


def test_a_gpu_that_fails_fails_the_version_and_is_left(packer: Packer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = packer.call
    monkeypatch.setattr(packer, "call", lambda name, *rest: fail() if name == "land" else real(name, *rest))

    def fail() -> None:
        raise LorryError("on the GPU: it fell off the bus", "", "INTERNAL")

    image = build(adapter(packer, 2), 0, 1, BufferPool(), packer=packer)
    with pytest.raises(LorryError, match="off the bus"):
        image.wait(image.data.nbytes)
    image.close()
    assert "off the bus" in caplog.text
    assert image.packing is not None
    image.packing._thread.join(60)
    assert packer._gpus == {}, "a full GPU needs the memory"
    assert build(adapter(packer, 2), 0, 1, BufferPool(), packer=packer).packing is None


def test_a_library_that_refuses_to_pack_costs_nothing_but_time(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    state = adapter(packer, 1)
    monkeypatch.setattr(gpu, "_row", lambda part, value: (value.data_ptr(), 1, 1 << 62, 0, 1, part.begin, 0, 0))
    image = build(state, 0, 1, BufferPool(), packer=packer)
    assert image.packing is None
    assert image.data.tobytes() == build(state, 0, 1, BufferPool()).data.tobytes()


@pytest.fixture
def on_cuda(packer: Packer) -> Packer:
    if packer._kind != "cuda":
        pytest.skip("streams and their order are a GPU's")
    return packer


def busy() -> None:
    """A quarter of a second of work in the current stream."""
    torch.cuda._sleep(500_000_000)


def test_what_the_next_step_does_is_not_in_the_image(on_cuda: Packer) -> None:
    weights = adapter(on_cuda, 8)
    expected = landed(build(weights, 0, 1, BufferPool(), packer=on_cuda))
    state = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    busy()
    for name, tensor in weights.items():
        state[name].copy_(tensor)
    image = build(state, 0, 1, BufferPool(), packer=on_cuda)
    for tensor in state.values():
        tensor.fill_(7)
    assert not torch.cuda.current_stream().query(), "nobody has waited for the step"
    assert landed(image) == expected


def test_the_stream_is_the_trainers_current_one(on_cuda: Packer) -> None:
    state = adapter(on_cuda, 8)
    expected = build(state, 0, 1, BufferPool()).data.tobytes()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        written = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        busy()
        for name, tensor in state.items():
            written[name].copy_(tensor)
        image = build(written, 0, 1, BufferPool(), packer=on_cuda)
    assert landed(image) == expected


def test_a_graph_that_is_captured_is_not_spoilt(on_cuda: Packer) -> None:
    state, out = adapter(on_cuda, 2), torch.zeros(4, device="cuda")
    expected = build(state, 0, 1, BufferPool()).data.tobytes()
    graph = torch.cuda.CUDAGraph()
    with ThreadPoolExecutor(1) as other, torch.cuda.graph(graph):
        out += 1
        with pytest.raises(RuntimeError, match="captured into a graph"):
            build(state, 0, 1, BufferPool(), packer=on_cuda)
        # The first image of this packer: memory is taken while the graph is captured.
        image = other.submit(build, state, 0, 1, BufferPool(), packer=on_cuda).result(60)
        assert image.packing is not None and landed(image) == expected
        out += 1
    assert out.tolist() == [0] * 4
    graph.replay()
    torch.cuda.synchronize()
    assert out.tolist() == [2] * 4


def test_where_the_gpu_is_full_tensors_are_copied(on_cuda: Packer, caplog: pytest.LogCaptureFixture) -> None:
    state = adapter(on_cuda, 100)
    expected = build(state, 0, 1, BufferPool()).data.tobytes()
    full: list[torch.Tensor] = []
    for size in (1 << 30, 1 << 25, 1 << 21):
        try:
            while True:
                full.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
    image = build(state, 0, 1, BufferPool(), packer=on_cuda)
    full.clear()
    torch.cuda.empty_cache()
    assert image.packing is None and landed(image) == expected
    assert "memory" in caplog.text
    assert (torch.ones(3, device="cuda") + 1).tolist() == [2] * 3, "torch hears of no error that was not its own"


@pytest.fixture
def gate(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """4 MiB land; the rest does once this is set."""
    real, steps, go = packer.call, 0, threading.Event()

    def one_step(name: str, *rest: object) -> None:
        nonlocal steps
        if name == "land":
            steps += 1
            assert steps == 1 or go.wait(60)
        real(name, *rest)

    monkeypatch.setattr(packer, "call", one_step)
    return go


def test_bytes_are_read_while_others_are_on_their_way(packer: Packer, gate: threading.Event) -> None:
    image = build(adapter(packer, 12), 0, 1, BufferPool(), packer=packer)
    so_far = image.wait(len(image.header) + 1)
    assert 4 * LEAF_BYTES <= so_far < image.data.nbytes
    expected = build(adapter(packer, 12), 0, 1, BufferPool()).data
    assert (image.data[:so_far] == expected[:so_far]).all()
    gate.set()
    assert landed(image) == expected.tobytes()


@pytest.fixture
def step(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The trainer's own step, behind which the GPU packs: it is done once this is set."""
    real, done = packer.call, threading.Event()

    def call(name: str, *rest: object) -> None:
        if name != "wait" or done.wait(0.01):
            real(name, *rest)

    monkeypatch.setattr(packer, "call", call)
    return done


def test_tensors_live_until_they_are_packed(packer: Packer, step: threading.Event, gate: threading.Event) -> None:
    state = {name: torch.nn.Parameter(tensor) for name, tensor in adapter(packer, 12).items()}
    memory = {parameter.data_ptr() for parameter in state.values()}
    image = build(state, 0, 1, BufferPool(), packer=packer)
    assert image.packing is not None
    for parameter in state.values():
        parameter.data = torch.empty(0)  # as a trainer does that takes its weights off the GPU
    state.clear()
    assert {source.data_ptr() for source in image.packing._sources} == memory, "it would be another tensor's before the kernel reads it"
    step.set()
    image.check()
    assert image.packing._sources == [], "they would take room while the image comes down"
    gate.set()
    landed(image)


def test_an_image_does_not_wait_for_the_step_of_another(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    real, late, done = packer.call, [], threading.Event()

    def call(name: str, *rest: object) -> None:
        if name == "pack":
            late.append(rest[-1]._obj)  # the job
        if name != "wait" or rest[0] is not late[0] or done.wait(0.01):
            real(name, *rest)

    monkeypatch.setattr(packer, "call", call)
    first, second = (build(adapter(packer, layers), 0, 1, BufferPool(), packer=packer) for layers in (3, 2))
    assert landed(second) == build(adapter(packer, 2), 0, 1, BufferPool()).data.tobytes()
    done.set()
    assert landed(first) == build(adapter(packer, 3), 0, 1, BufferPool()).data.tobytes()


def test_whoever_gives_an_image_up_does_not_wait_for_the_step(packer: Packer, step: threading.Event) -> None:
    image = build(adapter(packer, 2), 0, 1, BufferPool(), packer=packer)
    packing = image.packing
    assert packing is not None
    image.close()
    with pytest.raises(Cancelled):
        image.wait(1)
    assert packing._sources and packing._thread.is_alive(), "the GPU will still read them"
    memory = weakref.ref(image.data)
    image.release()
    assert memory() is None, "another image's by now"
    step.set()
    packing._thread.join(60)
    assert not packing._thread.is_alive() and packing._gpu.jobs == 0


def test_one_image_at_a_time_comes_down(packer: Packer, gate: threading.Event) -> None:
    first, second = (build(adapter(packer, layers), 0, 1, BufferPool(), packer=packer) for layers in (12, 11))
    first.wait(len(first.header) + 1)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(second.check)
        assert not wait([found], 0.2).done, "both would use the same two buffers"
        gate.set()
    for image, layers in ((first, 12), (second, 11)):
        assert landed(image) == build(adapter(packer, layers), 0, 1, BufferPool()).data.tobytes()


@pytest.mark.parametrize("end", [6 * LEAF_BYTES, 6 * LEAF_BYTES - 5])
def test_a_chunk_is_cut_when_its_bytes_are_there(packer: Packer, gate: threading.Event, end: int) -> None:
    image = build(adapter(packer, 12), 0, 1, BufferPool(), packer=packer)
    assert _chunk(image, LEAF_BYTES, 2 * LEAF_BYTES).checksum == image.checksum(LEAF_BYTES, 2 * LEAF_BYTES)
    with ThreadPoolExecutor(1) as other:
        chunk = other.submit(_chunk, image, 5 * LEAF_BYTES, end)
        assert not wait([chunk], 0.2).done
        gate.set()
        expected = build(adapter(packer, 12), 0, 1, BufferPool()).data[5 * LEAF_BYTES : end]
        assert chunk.result(60).data == expected.tobytes()
        assert chunk.result().checksum == xxhash.xxh3_128_digest(expected.data)
    image.close()


MOVER = """#!{python} -S
import json, sys
for line in sys.stdin:
    open({log!r}, "a").write(line)
    print(json.dumps({{"code": "OK", "reason": "", "message": "", "transport": "ucx-shm"}}), flush=True)
"""


def test_a_mover_sends_what_has_landed_while_the_rest_does(packer: Packer, gate: threading.Event, tmp_path: pathlib.Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    program, log = tmp_path / "lorry", tmp_path / "requests"
    program.write_text(MOVER.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("LORRY_MOVER", str(program))
    monkeypatch.setattr(upload, "MOVED_BYTES_MIN", LEAF_BYTES)
    movers = Movers()
    image = build(adapter(packer, 24), 0, 1, BufferPool(shared_from=movers.shared_from), packer=packer)
    begin, size = len(image.header), image.data.nbytes
    uploader = upload.Uploader(Connection(store="127.0.0.1:1"), movers, image, lambda moved: None)
    missing = [store_pb2.Range(offset=begin, length=size - begin)]
    with ThreadPoolExecutor(1) as other:
        sent = other.submit(uploader.send, store_pb2.BeginUploadResponse(missing=missing))
        while not (log.exists() and log.read_text().endswith("\n")):
            assert not wait([sent], 0.01).done
        assert json.loads(log.read_text())["ranges"] == [[begin, 4 * LEAF_BYTES]]
        gate.set()
        sent.result(60)
    movers.close()
    image.close()
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    ranges = [r for request in requests for r in request["ranges"]]
    assert len(requests) > 1 and ranges[0][0] == begin
    assert all(first + length == second for (first, length), (second, _) in zip(ranges, ranges[1:], strict=False))
    assert sum(ranges[-1]) == size
    leaves = [xxhash.xxh3_128_digest(image.data[at : at + LEAF_BYTES].data) for at in range(0, size, LEAF_BYTES)]
    assert all(base64.b64decode(request["leaves"]) == b"".join(leaves) for request in requests)


def test_nobody_waits_for_an_image_that_is_given_up(packer: Packer) -> None:
    image = build(adapter(packer, 40), 0, 1, BufferPool(), packer=packer)
    image.close()
    before = image.data.tobytes()
    assert image.packing is not None
    image.packing._thread.join(60)
    assert not image.packing._thread.is_alive() and image.data.tobytes() == before


def test_which_library_is_taken(library: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bin").mkdir()
    beside = tmp_path / "bin" / gpu.LIBRARY
    monkeypatch.setattr(programs, "find_program", lambda: str(tmp_path / "bin" / "lorry"))
    monkeypatch.delenv("LORRY_GPU", raising=False)
    assert find_packer() is None
    beside.symlink_to(library)
    assert find_library(gpu.LIBRARY) == beside
    assert find_packer() is not None
    of_the_wheel = tmp_path / "lorry_programs" / "lib" / gpu.LIBRARY
    of_the_wheel.parent.mkdir(parents=True)
    (tmp_path / "lorry_programs" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_library(gpu.LIBRARY) == beside, "a wheel that holds none"
    of_the_wheel.symlink_to(library)
    assert find_library(gpu.LIBRARY) == of_the_wheel
    monkeypatch.setattr(programs, "find_program", lambda: None)
    assert find_library(gpu.LIBRARY) == of_the_wheel
    assert find_packer() is not None
    monkeypatch.setenv("LORRY_GPU", "off")
    assert find_packer() is None
    monkeypatch.setenv("LORRY_GPU", str(tmp_path / "none.so"))
    assert find_packer() is None
    assert "none.so" in caplog.text


def test_where_there_is_no_driver_tensors_are_copied(library: str, caplog: pytest.LogCaptureFixture) -> None:
    path = pathlib.Path(library).with_name(gpu.LIBRARY)
    if not path.exists():
        pytest.skip("built without CUDA")
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver")
    except OSError:
        pass
    packer = Packer(str(path))
    assert packer._kind == "cuda"
    packer._kind = "cpu"  # where tensors of this machine are
    state = adapter(packer, 2)
    for _ in range(2):
        copied = build(state, 0, 1, BufferPool(), packer=packer)
        assert copied.packing is None
        assert landed(copied) == landed(build(state, 0, 1, BufferPool()))
    (record,) = caplog.records
    assert record.message.startswith("adapters are copied from the GPU tensor by tensor from here on")
    assert record.message.endswith("no NVIDIA driver: libcuda.so.1: cannot open shared object file: No such file or directory")
