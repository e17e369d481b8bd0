"""Publishes one version, waits until it is served, and asks every door for it, as a trainer's machine would.

usage: trainer.py ADAPTER_DIRECTORY VERSION JSON; services are named by LORRY_STORE and LORRY_ORCHESTRATOR. The JSON has `credentials`,
and may have a `policy` to set first, the arguments of a `reference`, and as `read_ahead` those of publish_early, for a directory of
testing/early.py. The last line that it prints is JSON: a door's address → what its reply said.
"""

import json
import pathlib
import re
import sys
import urllib.request

import lorry
from testing import early
from testing.doors import DoorClient
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until


def publish_early(run: lorry.Run, folder: pathlib.Path, version: int, doors: list[DoorClient], credentials: dict[str, str],
                  after: str, metrics: str) -> None:
    """Sends `after` as the version before, and then `folder`, of which somebody has read the header before the rest is sent. Waits
    until each is served."""

    def sent() -> int:
        with urllib.request.urlopen(metrics, timeout=5) as reply:
            text = reply.read().decode()
        return sum(int(float(n)) for n in re.findall(r'^lorry_transfer_bytes_total\{direction="out".*\} (\S+)$', text, re.MULTILINE))

    def is_served(number: int) -> bool:
        return all(door.ask("policy").version == number for door in doors)

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
            doors = [DoorClient("vllm", member["door_address"]) for member in admin.status()["members"]]
            publish_early(run, folder, version, doors, credentials, **said["read_ahead"])
        else:
            run.publish(folder, version=version, reference=reference).wait("serving", timeout=120)
        addresses = [member["door_address"] for member in admin.status()["members"]]
    answers = {}
    for address in addresses:
        answer = DoorClient("vllm", address).ask("policy")
        answers[address] = {"status": answer.status, "tokens": answer.tokens, "prompt": answer.prompt, "headers": answer.headers}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
