"""Registering work that is planned together (spec: cli §7)."""

from msgspec import Struct

from agentcoord.errors import Conflict, UsageError
from agentcoord.operations.context import Context, contention, read_object
from agentcoord.protocol.batches import build_batch, require_manifest
from agentcoord.protocol.documents import INPUT_DEPTH, Document, decode, depth
from agentcoord.protocol.paths import batch_path


class BatchRequest(Struct, frozen=True):
    """A manifest as its bytes were read, and what the command line adds to it."""

    manifest: bytes
    batch_id: str | None = None
    launch_prompt: bytes | None = None
    synthetic: Document = {}


class Registered(Struct, frozen=True):
    """The batch as it now stands."""

    record: Document


async def register_batch(context: Context, request: BatchRequest) -> Registered:
    """Validate a manifest and write it verbatim with its stamps. All checks precede the write.

    Raises UsageError for an invalid manifest or prompt, StoreError on contention.
    """
    prompt = _prompt(request.launch_prompt)
    try:
        value = decode(request.manifest)
    except ValueError as error:
        raise UsageError(f"batch manifest JSON invalid: {error}") from None
    if depth(value) > INPUT_DEPTH:
        raise UsageError(f"batch manifest JSON invalid: nested deeper than {INPUT_DEPTH} levels")
    manifest = require_manifest(value, request.batch_id)
    batch_id = manifest["batch_id"]
    path = batch_path(batch_id)
    found = await read_object(context.store, path, "a batch")
    record = build_batch(manifest, found[0] if found else None, request.synthetic, prompt, context.now())
    try:
        await context.store.write(
            path, record, version=found[1].version if found else None, note=f"Register batch {batch_id}"
        )
    except Conflict as error:
        raise contention(f"batch registration write contention for {batch_id}", error) from error
    return Registered(record=record)


def _prompt(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("launch prompt must be valid UTF-8") from None
