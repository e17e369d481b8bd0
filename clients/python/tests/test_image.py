"""The image is byte for byte what the safetensors package writes, however its parts arrive."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lorry.errors import Refused
from lorry.image import BufferPool, Shard, build
from lorry.state import collect

A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def whole_bytes(state: dict[str, torch.Tensor], folder: pathlib.Path) -> bytes:
    path = folder / "adapter_model.safetensors"
    save_file({k: v.contiguous() for k, v in state.items()}, path, metadata={"format": "pt"})
    return path.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_rank_lays_out_what_safetensors_writes(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    state = {B: torch.randn(64, 8).to(dtype), A: torch.randn(8, 32).to(dtype)}
    image = build(state, 0, 1, BufferPool())
    assert image.data.tobytes() == whole_bytes(state, tmp_path)


def test_mixed_dtypes_are_ordered_as_safetensors_orders_them(tmp_path: pathlib.Path) -> None:
    other_a, other_b = A.replace("q_proj", "k_proj"), B.replace("q_proj", "k_proj")
    state = {
        A: torch.randn(8, 33, dtype=torch.float16),
        B: torch.randn(5, 8),
        other_a: torch.randn(8, 3).bfloat16(),
        other_b: torch.randn(3, 8, dtype=torch.float64),
    }
    assert build(state, 0, 1, BufferPool()).data.tobytes() == whole_bytes(state, tmp_path)


@pytest.mark.parametrize(("tensor", "remedy"), [
    (torch.empty(0), r"deepspeed\.zero\.GatheredParameters"),  # as ZeRO-3 leaves it between steps
    (torch.empty(8, 0), r"shape \[8, 0\] and no values"),
    (torch.empty(8, 32, device="meta"), "on the meta device"),
    (Shard(torch.empty(4, 32, device="meta"), (8, 32), (0, 0)), "on the meta device"),
])
def test_tensors_without_values_are_refused_by_name(tensor: torch.Tensor | Shard, remedy: str) -> None:
    with pytest.raises(Refused, match=f'"{A}" .*{remedy}') as refused:
        build({A: tensor, B: torch.randn(64, 8)}, 0, 1, BufferPool())
    assert refused.value.reason == "TENSOR_ABSENT"


def test_ranks_fill_disjoint_pieces_that_cover_the_data(tmp_path: pathlib.Path) -> None:
    a, b, k = torch.randn(8, 32), torch.randn(64, 8), torch.randn(4, 32)
    other = A.replace("q_proj", "k_proj")
    expected = whole_bytes({A: a, B: b, other: k}, tmp_path)
    pool = BufferPool()
    seen = np.zeros(len(expected), dtype=np.int32)
    merged = np.zeros(len(expected), dtype=np.uint8)
    for rank in range(2):
        state = {
            A: Shard(a[:, rank * 16 : rank * 16 + 16], (8, 32), (0, rank * 16)),  # columns
            B: Shard(b[rank * 32 : rank * 32 + 32], (64, 8), (rank * 32, 0)),  # rows
            other: k,  # whole everywhere
        }
        image = build(state, rank, 2, pool)
        merged[: len(image.header)] = np.frombuffer(image.header, dtype=np.uint8)
        seen[: len(image.header)] = 1
        for piece in image.pieces:
            part = slice(piece.offset, piece.offset + piece.length)
            seen[part] += 1
            merged[part] = image.data[part]
    assert (seen == 1).all()
    assert merged.tobytes() == expected


def test_every_byte_of_dtensors_has_one_sender() -> None:
    """HSDP on four ranks: replicas take turns; a dimension that is too short for all leaves some without a part."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor import Shard as Sharded
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shapes = {A.replace("layers.0", f"layers.{n}"): (1, 32) for n in range(4)} | {B: (64, 1), B.replace("q_", "k_"): (63, 1)}
    seen: list[int] = []
    for rank in range(4):
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2))
            state: dict[str, DTensor] = {}
            for name, (rows, columns) in shapes.items():
                part = torch.zeros(rows, columns).chunk(2)[rank % 2 :][:1]
                local = part[0] if part else torch.zeros(0, columns)
                state[name] = DTensor.from_local(local, mesh, [Replicate(), Sharded(0)], run_check=False,
                                                 shape=torch.Size((rows, columns)), stride=(columns, 1))
            image = build(state, rank, 4, BufferPool())
        finally:
            distributed.destroy_process_group()
        seen += [at for p in image.pieces for at in range(p.offset, p.offset + p.length)]
        begin, end = len(image.header), image.data.nbytes
    assert sorted(seen) == list(range(begin, end))


def test_terms_of_a_sum_are_refused() -> None:
    """A Partial DTensor's local values are no part of the tensor: as a part they would be published as wrong weights."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        term = DTensor.from_local(torch.ones(8, 32), init_device_mesh("cpu", (2,)), [Partial()], run_check=False)
        with pytest.raises(Refused, match="redistribute") as refused:
            build({A: term}, 0, 2, BufferPool())
        assert refused.value.reason == "TENSOR_PARTIAL"
    finally:
        distributed.destroy_process_group()


def test_a_buffer_is_used_again_for_the_next_version() -> None:
    pool = BufferPool()
    first = build({A: torch.zeros(8, 32)}, 0, 1, pool).buffer
    pool.give(first)
    assert build({A: torch.ones(8, 32)}, 0, 1, pool).buffer is first
    assert first.path is None


def test_a_large_image_lies_where_another_process_finds_it() -> None:
    image = build({A: torch.ones(8, 32)}, 0, 1, BufferPool(shared_from=1))
    path = image.buffer.path
    assert path is not None
    assert pathlib.Path(path).read_bytes() == image.data.tobytes()
    kept = image.data
    del image
    assert not pathlib.Path(path).exists(), "its descriptor goes with it"
    assert kept[-4:].tobytes() == torch.ones(1).numpy().tobytes(), "and the memory with the last who looks"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("base_model.model.lm_head.lora_A.weight", "EMBEDDING_UNSUPPORTED"),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector.weight", "DORA_UNSUPPORTED"),
        ("base_model.model.score.modules_to_save.weight", "MODULES_TO_SAVE_UNSUPPORTED"),
        ("model.layers.0.mlp.up_proj.weight", "TENSOR_UNKNOWN"),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_name(name: str, reason: str) -> None:
    if reason == "EMBEDDING_UNSUPPORTED":
        name = name.replace("lora_A", "lora_embedding_A")
    with pytest.raises(Refused) as refused:
        build({name: torch.zeros(2, 2)}, 0, 1, BufferPool())
    assert refused.value.reason == reason


def test_whole_trained_modules_are_refused_by_their_config() -> None:
    """Their tensors look like trained embeddings, or like nothing known."""
    with pytest.raises(Refused, match="leave it empty") as refused:
        collect({A: torch.zeros(2, 2)}, {"modules_to_save": ["lm_head"]})
    assert refused.value.reason == "MODULES_TO_SAVE_UNSUPPORTED"


def test_a_folder_that_is_not_there_is_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refused, match="DIRECTORY_INVALID: .* is no directory"):
        collect(tmp_path / "nope", None)


def test_two_names_of_one_tensor_are_refused() -> None:
    twin = "module." + A.replace(".weight", ".default.weight")
    with pytest.raises(Refused, match="TENSOR_AMBIGUOUS"):
        build({A: torch.zeros(2, 2), twin: torch.zeros(2, 2)}, 0, 1, BufferPool())


def test_integer_tensors_are_refused() -> None:
    with pytest.raises(Refused, match="TENSOR_DTYPE"):
        build({A: torch.zeros(2, 2, dtype=torch.int32)}, 0, 1, BufferPool())
