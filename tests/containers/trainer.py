"""Publishes one version, waits until it is served, and asks every door for it, as a trainer's machine would.

usage: trainer.py ADAPTER_DIRECTORY VERSION JSON; services are named by LORRY_STORE and LORRY_ORCHESTRATOR. The JSON has `credentials`,
and may have a `policy` to set first and the arguments of a `reference`. The last line that it prints is JSON: a door's address → what its
reply said.
"""

import json
import pathlib
import sys

import lorry
from testing.doors import DoorClient


def main() -> None:
    folder, version, said = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    credentials = said["credentials"]
    reference = lorry.Reference(*said["reference"]) if "reference" in said else None
    with lorry.open_run("policy", **credentials) as run, lorry.Admin(**credentials) as admin:
        if "policy" in said:
            admin.set_policy("policy", said["policy"])
        run.publish(folder, version=version, reference=reference).wait("serving", timeout=120)
        doors = [member["door_address"] for member in admin.status()["members"]]
    answers = {}
    for door in doors:
        answer = DoorClient("vllm", door).ask("policy")
        answers[door] = {"status": answer.status, "tokens": answer.tokens, "prompt": answer.prompt, "headers": answer.headers}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
