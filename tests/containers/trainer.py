"""Publishes one version, waits until it is served, and asks every door for it, as a trainer's machine would.

usage: trainer.py ADAPTER_DIRECTORY VERSION CREDENTIALS_JSON; services are named by LORRY_STORE and LORRY_ORCHESTRATOR. The last line
that it prints is JSON: a door's address → what its reply said.
"""

import json
import pathlib
import sys

import lorry
from testing.doors import DoorClient


def main() -> None:
    folder, version, credentials = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    with lorry.open_run("policy", **credentials) as run:
        run.publish(folder, version=version).wait("serving", timeout=120)
    with lorry.Admin(**credentials) as admin:
        doors = [member["door_address"] for member in admin.status()["members"]]
    answers = {}
    for door in doors:
        answer = DoorClient("vllm", door).ask("policy")
        answers[door] = {"status": answer.status, "tokens": answer.tokens, "prompt": answer.prompt, "headers": answer.headers}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
