"""The order that mode BARRIER promises, judged from outside by what clients asked and were answered."""

from __future__ import annotations

from testing.world import Traffic


def check_order(traffic: Traffic) -> None:
    """No request that was asked after some reply of a version had begun is answered by an older one."""
    answers = [a for _, a in traffic.answers if a.status == 200]
    newest, replies = 0, iter(sorted(answers, key=lambda a: a.began_at))
    reply = next(replies, None)
    for asked in sorted(answers, key=lambda a: a.asked_at):
        while reply is not None and reply.began_at < asked.asked_at:
            newest = max(newest, reply.version)
            reply = next(replies, None)
        assert asked.version >= newest, f"v{asked.version} was begun after v{newest} had answered"
