"""Publishes one version, waits until it is served, and asks every door for it, as a trainer's machine would.

usage: trainer.py ADAPTER_DIRECTORY VERSION JSON; services are named by LORRY_STORE and LORRY_ORCHESTRATOR. The JSON has `credentials`,
and may have a `policy` to set first, the arguments of a `reference`, and as `read_ahead` those of publish_early, for a directory of
testing/early.py. The last line that it prints is JSON: a door's address → what its reply said.
"""

import json
import pathlib
import sys
import urllib.request

import lorry
from testing import early, metrics
from testing.doors import DoorClient
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until


def doors(admin: lorry.Admin) -> dict[str, DoorClient]:
    """By address."""
    addresses = [member["door_address"] for member in admin.status()["members"]]
    return {address: DoorClient("vllm", address) for address in addresses}


def publish_early(run: lorry.Run, folder: pathlib.Path, version: int, served_by: list[DoorClient], credentials: dict[str, str],
                  after: str, store: str) -> None:
    """Sends `after` as the version before, and then `folder`, of which somebody has read the header before the rest is sent, as the
    metrics at `store` say. Waits until each is served."""

    def sent() -> int:
        with urllib.request.urlopen(store, timeout=5) as reply:
            return metrics.sent(reply.read().decode())

    def is_served(number: int) -> bool:
        return all(door.ask("policy").version == number for door in served_by)

    publisher, image = RawPublisher(credentials, "policy", run.number), RawImage.of(folder)
    publisher.publish(version - 1, RawImage.of(pathlib.Path(after)))
    until(lambda: is_served(version - 1), "the version before is served", 120)
    early.finish(publisher, early.begin(publisher, version, image, sent, sent()), image)
    until(lambda: is_served(version), "it is served", 120)
    publisher.close()


def main() -> None:
    folder, version, said = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    credentials = said["credentials"]
    reference = lorry.Reference(*said["reference"]) if "reference" in said else None
    with lorry.open_run("policy", **credentials) as run, lorry.Admin(**credentials) as admin:
        if "policy" in said:
            admin.set_policy("policy", said["policy"])
        if "read_ahead" in said:
            publish_early(run, folder, version, list(doors(admin).values()), credentials, **said["read_ahead"])
        else:
            run.publish(folder, version=version, reference=reference).wait("serving", timeout=120)
        asked = doors(admin)
    answers = {}
    for address, door in asked.items():
        answer = door.ask("policy")
        answers[address] = {"status": answer.status, "tokens": answer.tokens, "prompt": answer.prompt, "headers": answer.headers}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
