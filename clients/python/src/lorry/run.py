"""A run: one training process from its start, and the versions that it publishes."""

from __future__ import annotations

import json
import operator
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash
from tqdm import tqdm

from lorry import base_model, collectives, errors, norms, state
from lorry.common.v1 import adapter_pb2
from lorry.connection import Connection
from lorry.gpu import find_packer
from lorry.handle import PublishHandle
from lorry.image import BufferPool, Image, build
from lorry.mover import Movers
from lorry.on_the_way import OnTheWay, wait_for_turn
from lorry.reference import METADATA_KEY as REFERENCE_KEY
from lorry.reference import Reference
from lorry.store.v1 import store_pb2
from lorry.tries import Tries, Try
from lorry.upload import Uploader, chunks

# A bar for uploads that a person would wait for; smaller ones are over before it could be read.
PROGRESS_BAR_BYTES = 64 << 20
# How often ranks ask whether the others have sent their slices. The first asks soonest, so that the version is stored
# soon after the last byte; the others, which only learn of it, ask less often the more they are: together 256 times a second.
COMMIT_PAUSE_MAX_S = 0.5
COMMITS_PER_S_MAX = 256
# A ticket lives ten minutes by default; an upload that takes more than a hundred is one that does not move.
TICKETS_MAX = 100
# Bytes that changed on their way or in the store's memory are sent again; what changes every time is no accident.
CORRUPT_MAX = 3
_NUMBERS = range(1 << 64)
_STATE_KEYS = {"adapter", "run", "version"}


def open_run(
    adapter: str,
    *,
    resume_from: int | tuple[int, int] | Mapping[str, Any] | None = None,
    expected_run: int | None = None,
    store: str | None = None,
    orchestrator: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    group: Any = None,
) -> Run:
    """Opens a run of ``adapter`` and fences the process that had the previous one. What engines serve stays as it is until the run's first
    version is decided: publish one and wait for ``"serving"`` before the first rollout.

    Every rank of a torch.distributed job calls it; rank 0 asks the store, the others learn the answer. Where a rank fails, all raise its error.

    Args:
        adapter: ``^[a-z0-9][a-z0-9._-]{0,62}$``, and not ending in ``-v<digits>``, as a version's name does; created with the default policy if it is new.
        resume_from: the version that training goes on from: what :meth:`Run.state_dict` gave, a number of the current run, or
            (run, number). The version must still be stored.
        expected_run: refuse unless this run is the current one; 0 for "none yet".
        store, orchestrator, token, token_file, ca_file, cert_file, key_file: see :class:`lorry.Connection`.
        group: torch.distributed process group; default: the default group where one is initialised; ``lorry.ALONE``: this process
            publishes the whole adapter, as the rank does that frameworks gather it on.

    Raises:
        RunFenced: ``expected_run`` is not the current run.
        LorryError: the store refused or stayed away; ``UNKNOWN_VERSION``: the version to go on from is stored no longer.
        ValueError: ``resume_from`` is of another adapter, or no state of a run.
    """
    ranks = collectives.Ranks(group)
    failed: Exception | None = None
    try:
        wanted = _version_of(adapter, resume_from)
        connection = Connection(store, orchestrator, token=token, token_file=token_file, ca_file=ca_file, cert_file=cert_file,
                                key_file=key_file)
    except Exception as error:
        failed = error
    ranks.raise_if_any(failed)  # before the old run is fenced

    def ask() -> tuple[int, int, tuple[int, int] | None]:
        request = store_pb2.OpenRunRequest(adapter=adapter, request_id=uuid.uuid4().hex)
        resumed = None
        if wanted is not None:
            # Which run "the current one" was is known only until the new run is open.
            ref = store_pb2.GetVersionRequest(version=adapter_pb2.VersionRef(adapter=adapter, run=wanted[0], number=wanted[1]))
            request.resume_from.CopyFrom(connection.call(connection.store.GetVersion, ref).version.ref)
            resumed = (request.resume_from.run, request.resume_from.number)
        if expected_run is not None:
            request.expected_run = expected_run
        answer = connection.call(connection.store.OpenRun, request)
        # All ranks share one attempt number. It is the clock, so that a restarted job's is higher.
        return answer.run, time.time_ns() // 1_000_000, resumed

    number, attempt, resumed = ranks.from_first(ask)
    return Run(connection, adapter, number, attempt, ranks, resumed)


def _version_of(adapter: str, resume_from: int | tuple[int, int] | Mapping[str, Any] | None) -> tuple[int, int] | None:
    """(run, number), run 0 for the current one."""
    if isinstance(resume_from, int):
        return 0, resume_from
    if not isinstance(resume_from, Mapping):
        return resume_from
    if resume_from.keys() != _STATE_KEYS:
        raise ValueError(f"resume_from has the keys {sorted(resume_from)}; give what run.state_dict() returned")
    if resume_from["adapter"] != adapter:
        raise ValueError(f"resume_from is a state of {resume_from['adapter']}, not of {adapter}; give the adapter's own")
    return None if resume_from["version"] is None else (resume_from["run"], resume_from["version"])


def _fingerprint(image: Image) -> bytes:
    """Of the header and this rank's bytes."""
    hasher = xxhash.xxh3_128(image.header)
    for begin, end in chunks((p.offset, p.offset + p.length) for p in image.pieces):
        hasher.update(image.checksum(begin, end))
    return hasher.digest()


class Run:
    """Publishes versions. Not thread-safe: one thread of each rank publishes, in the order of the numbers.

    Attributes:
        adapter: the adapter's name.
        number: the run's number.
        world_size: ranks that opened it together; each publishes its part.
    """

    def __init__(
        self, connection: Connection, adapter: str, number: int, attempt: int, ranks: collectives.Ranks,
        resumed_from: tuple[int, int] | None = None,
    ) -> None:
        self.adapter = adapter
        self.number = number
        self.world_size = ranks.world_size
        self._tries = Tries(attempt)
        self._on_the_way = OnTheWay()
        self._connection = connection
        self._ranks = ranks
        self._movers = Movers()
        self._pool = BufferPool(shared_from=self._movers.shared_from)
        self._packer = find_packer()
        self._base_norms = norms.BaseNorms()
        self._resumed_from = resumed_from  # (run, number)
        self._is_closed = False
        self._newest = -1  # that is stored, of this run; under _lock
        self._lock = threading.Lock()

    def publish(
        self,
        source: Any,
        *,
        version: int,
        config: Any = None,
        base_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        relative_norm: float | None = None,
        reference: Reference | Sequence[Sequence[int]] | None = None,
        progress: bool | None = None,
        keep: bool = False,
        dtype: str | None = None,
    ) -> PublishHandle:
        """Publishes ``source`` as ``version``; returns once its bytes are copied, so training may go on. On a GPU the copy may only be
        queued by then, in torch's current stream, and what is queued there later comes after it.

        Versions become stored in the order of their numbers, each once the older ones of this run have ended. Four may be on their
        way; with as many, this waits until one has ended, on each rank for itself.

        Every rank of a sharded model calls it with its own slices; nobody gathers for the others.

        Published again, a number that is not stored begins anew, with nothing of what was sent for it: its earlier handle raises
        AttemptFenced. One that is stored is success with the same bytes, else VersionConflict. Every rank must publish a number
        equally often: where one rank may have left it out, publish the next number on all of them.

        Args:
            source: a PeftModel, a state dict (name → tensor, numpy array, DTensor or :class:`lorry.Shard`),
                or the path of a PEFT directory.
            version: the trainer's weight version, >= 0, above all that this run published.
            config: adapter_config.json's fields, or PEFT's LoraConfig; needed with a state dict.
            base_config: the base model's config.json, its path or its fields, by which projections that the trainer fused
                (``qkv_proj``, ``gate_up_proj``) and experts that are adapted as one parameter are taken apart as engines name
                them. Default: of a PeftModel its own base model's.
            relative_norm: the largest ``|scale * B @ A| / |W|`` of any module, the same on every rank. With it engines
                must show that they apply the version, where its size says that this can be seen; without, one that
                shows nothing is served as UNPROVEN. Default: computed of a PeftModel on a single rank.
            reference: a few fixed prompts as token ids, of which ``source``, a PeftModel, computes the log-probabilities before
                this returns; or a :class:`lorry.Reference`, the same on every rank. Each engine must come within the policy's
                ``probe_gap`` of them before it serves the version, and ``lorry status`` shows how far it is.
            progress: show a bar on stderr; default: for more than 64 MiB, on a terminal, on rank 0.
            keep: the store deletes the version only when it is told to, whatever the policy's ``store_keep`` says: for the
                versions that a trainer's checkpoints go on from. One that is stored already is kept from then on. The same on every rank.
            dtype: ``"bfloat16"`` publishes float32 and float16 tensors as bfloat16, rounded to the nearest. The same on every rank.

        Raises:
            Refused: this can never be a version, and why.
            LorryError: TOO_MANY_UPLOADS: four versions are on their way, and none of them has moved for ten minutes. The run is closed.
        """
        if self._is_closed:
            raise errors.LorryError(f"run {self.number} of {self.adapter} is closed; publish inside the with block, or open a new run", "",
                                    "FAILED_PRECONDITION")
        version = _number(version)
        this = self._tries.begin(version)  # also what is refused below: the other ranks count this call, too
        self._on_the_way.make_room()
        tensors, fields = state.collect(source, config)
        if relative_norm is None and self._ranks.world_size == 1 and hasattr(source, "peft_config"):
            relative_norm = self._base_norms.relative_norm(source)
        ppm = norms.to_ppm(relative_norm or 0.0)
        metadata = {norms.METADATA_KEY: str(ppm)} if ppm else {}
        trained_on = base_model.describe(source) if hasattr(source, "peft_config") else None
        if trained_on is not None:
            metadata[base_model.METADATA_KEY] = trained_on
        if reference is not None:
            metadata[REFERENCE_KEY] = self._reference_json(source, reference)
        base = base_model.read_fields(base_config) if base_config is not None else base_model.fields_of(source)
        image = build(tensors, self._ranks.rank, self._ranks.world_size, self._pool, metadata, base, dtype, self._packer)
        fields = state.settle(fields, image.target_modules, image.unstacked)
        total = sum(p.length for p in image.pieces)
        if progress is None:
            progress = total >= PROGRESS_BAR_BYTES and sys.stderr.isatty() and self._ranks.rank == 0
        this.handle = handle = PublishHandle(self._connection, self.adapter, self.number, version, total)
        taken = threading.Lock()  # by whoever ends it: its thread, or this one where that never comes to it
        try:
            older = self._on_the_way.add(handle)
            threading.Thread(
                target=self._publish,
                args=(taken, this, handle, older, image, json.dumps(fields, sort_keys=True), progress, keep),
                name=f"lorry-publish-{version}",
                daemon=True,
            ).start()
        except BaseException as error:  # no thread, or an interrupt while one starts, which may read the image by now
            if taken.acquire(blocking=False):
                handle._is_told = True
                handle._failed(error)
                self._let_go(this, handle, image)
            else:
                handle.cancel()  # the caller gets no handle
            raise
        return handle

    def state_dict(self) -> dict[str, Any]:
        """What a trainer's checkpoint keeps of the run: the newest version that is stored, a few words instead of the adapter.

        After a restart ``open_run(adapter, resume_from=state)`` opens a new run that goes on from there, also when later versions
        were published since: their numbers are free again in the new run, and whoever still publishes in the old one is fenced.
        Until the new run has stored a version, its state is the one that it was opened with.

        Returns:
            ``{"adapter": name, "run": number, "version": number}``, version None where nothing is stored yet: plain values for
            torch.save and JSON alike. Wait for ``"stored"`` first to have the version that was just published.
        """
        with self._lock:
            newest = (self.number, self._newest) if self._newest >= 0 else self._resumed_from
        run, version = newest or (self.number, None)
        return {"adapter": self.adapter, "run": run, "version": version}

    def _reference_json(self, source: Any, reference: Reference | Sequence[Sequence[int]]) -> str:
        if isinstance(reference, Reference):
            return reference.to_json()
        if not hasattr(source, "peft_config"):
            raise errors.Refused("reference= of prompts needs a PeftModel to compute their log-probabilities; give a "
                                 "lorry.Reference with them", "REFERENCE_INVALID", "INVALID_ARGUMENT")
        computed = Reference.of(source, reference).to_json()  # on every rank, as any forward pass
        return self._ranks.from_first(lambda: computed)

    def _publish(
        self, taken: threading.Lock, this: Try, handle: PublishHandle, older: list[PublishHandle], image: Image, config_json: str,
        progress: bool, keep: bool,
    ) -> None:
        if not taken.acquire(blocking=False):
            return
        bar = tqdm(total=handle.bytes_total, unit="B", unit_scale=True, disable=not progress, file=sys.stderr,
                   desc=f"{self.adapter} v{handle.number}", leave=False)

        def on_progress(length: int) -> None:
            handle._advance(length)
            bar.update(length)

        uploader = Uploader(self._connection, self._movers, image, on_progress)
        handle._set_canceller(uploader.cancel)
        try:
            version = self._upload(this, handle, older, image, config_json, uploader, keep)
            this.is_stored = True
            with self._lock:  # numbers may have been published in another order
                self._newest = max(self._newest, handle.number)
            handle._stored(version)
        except BaseException as error:  # the handle is where the caller looks
            handle._failed(error)
        finally:
            bar.close()
            self._let_go(this, handle, image)

    def _let_go(self, this: Try, handle: PublishHandle, image: Image) -> None:
        this.handle = None
        handle._set_canceller(None)
        self._pool.give(image.release())

    def _upload(
        self, this: Try, handle: PublishHandle, older: list[PublishHandle], image: Image, config_json: str, uploader: Uploader,
        keep: bool,
    ) -> adapter_pb2.Version:
        image.check()
        this.fingerprint = _fingerprint(image)
        before = self._stored_before(this, handle)
        request = store_pb2.BeginUploadRequest(
            version=adapter_pb2.VersionRef(adapter=self.adapter, run=self.number, number=handle.number),
            attempt=before.attempt if before is not None else this.attempt,
            header=image.header,
            config_json=config_json,
            image_bytes=image.data.nbytes,
            keep=keep and (before is None or before.fingerprint == this.fingerprint),  # not what it is a conflict with
        )
        corrupt = 0
        for _ in range(TICKETS_MAX):
            handle._check_cancelled()
            begun = handle._ask(self._connection.store.BeginUpload, request)
            if begun.HasField("stored"):
                # The store knows an attempt that comes again by its header; only this process can compare the bytes.
                if before is not None and before.fingerprint != this.fingerprint:
                    raise errors.VersionConflict(
                        f"{handle} is stored with other bytes, which this process sent for it before; publish the next number",
                        "VERSION_CONFLICT", "ALREADY_EXISTS")
                handle._advance(handle.bytes_total)
                stored: adapter_pb2.Version = begun.stored
                return stored
            this.upload_id = begun.upload_id
            handle._set_upload(begun.upload_id)
            try:
                uploader.send(begun)
                wait_for_turn(handle, older)
                return self._commit(handle, begun, uploader)
            except errors.LorryError as error:
                corrupt += error.reason == "RANGE_CORRUPT"  # of a commit: that upload is dead, the next begins anew
                if error.reason not in ("TICKET_EXPIRED", "RANGE_CORRUPT") or corrupt > CORRUPT_MAX:
                    raise
        raise errors.LorryError(f"{TICKETS_MAX} tickets expired before {handle} was sent", "TICKET_EXPIRED",
                                "DEADLINE_EXCEEDED")

    def _stored_before(self, this: Try, handle: PublishHandle) -> Try | None:
        """The earlier publish of the number that became the version, if one did. From here on none of the others can: an upload
        that is aborted is dead for all ranks, or was stored for all of them.
        """
        for one in this.before:
            if one.is_stored or (one.upload_id and self._was_stored(handle, one.upload_id)):
                this.before = [one]
                return one
        this.before = []
        return None

    def _was_stored(self, handle: PublishHandle, upload_id: str) -> bool:
        try:
            handle._ask(self._connection.store.AbortUpload, store_pb2.AbortUploadRequest(upload_id=upload_id))
            upload = handle._ask(self._connection.store.GetUpload, store_pb2.GetUploadRequest(upload_id=upload_id))
            return bool(upload.state == store_pb2.GetUploadResponse.STATE_STORED)
        except errors.LorryError as error:
            if error.reason != "UNKNOWN_UPLOAD":
                raise
            return False  # it ended long ago

    def _commit(
        self, handle: PublishHandle, begun: store_pb2.BeginUploadResponse, uploader: Uploader
    ) -> adapter_pb2.Version:
        """Any rank commits. Until the last rank has sent its slices the answer is RANGES_MISSING; then CHECK_RUNNING for as
        long as the store checks the image, which takes minutes where it is large, and it says so every time it is asked.

        A store that died meanwhile may lack bytes that it had accepted: this rank's are sent again.
        """
        longest_s = COMMIT_PAUSE_MAX_S
        if self._ranks.rank != 0:
            longest_s = max(longest_s, self._ranks.world_size / COMMITS_PER_S_MAX)
        pause_s, idle_s = 0.01, begun.idle_deadline_ms / 1000 or 60.0
        missing, since = -1, time.monotonic()
        while True:
            handle._check_cancelled()
            try:
                request = store_pb2.CommitUploadRequest(upload_id=begun.upload_id)
                version: adapter_pb2.Version = handle._ask(self._connection.store.CommitUpload, request).version
                return version
            except errors.LorryError as error:
                if error.reason not in ("RANGES_MISSING", "CHECK_RUNNING"):
                    raise
                checking = error.reason == "CHECK_RUNNING"
            left = 0 if checking else self._send_what_is_missing(handle, begun, uploader)
            handle._say_missing(left)
            if checking or left != missing:
                missing, since = left, time.monotonic()
            elif time.monotonic() - since > idle_s:
                raise errors.LorryError(
                    f"{left} bytes of {self.adapter} v{handle.number} never came: another rank died, or published it less or "
                    "more often; call publish on every rank", "RANGES_MISSING", "DEADLINE_EXCEEDED")
            handle._ended.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, longest_s)

    def _send_what_is_missing(self, handle: PublishHandle, begun: store_pb2.BeginUploadResponse, uploader: Uploader) -> int:
        """Sends this rank's part of what the store lacks; returns how many bytes it lacked, those of other ranks too."""
        upload = handle._ask(self._connection.store.GetUpload, store_pb2.GetUploadRequest(upload_id=begun.upload_id))
        begun.ClearField("missing")
        begun.missing.extend(upload.missing)
        uploader.send(begun)
        return sum(r.length for r in upload.missing)

    def close(self) -> None:
        """Waits for what is on its way, each version as long as its upload is patient, and ends the connection; published versions
        stay. Ctrl-C cancels what is on its way and is passed on.

        A with block ends so, too. An exception that leaves it cancels what is on its way instead. A script that ends without either
        waits as well, unless an exception ends it, and gives up what stands still for a minute.

        Raises:
            LorryError: versions were not stored, and no ``wait`` has said so: which, and why.
        """
        self._is_closed = True
        try:
            self._on_the_way.finish()
        finally:
            self._movers.close()
            self._connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self._on_the_way.cancel()
        self.close()


def _number(version: Any) -> int:
    """Of a version, whatever kind of whole number the trainer counts in."""
    try:
        number = operator.index(version)
    except TypeError:
        number = -1
    if number not in _NUMBERS:
        raise errors.Refused(f"version= is a whole number from 0 on, and {version!r} is none", "VERSION_INVALID", "INVALID_ARGUMENT")
    return number
