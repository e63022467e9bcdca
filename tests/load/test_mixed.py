"""The long haul: everything that clients do, well or badly, side by side for a long time, in equal parts with a rest after
each.  At every rest the counts add up and the server holds what it held at the rests before: memory, descriptors,
threads and processes, its own and its workers'."""

import collections
import contextlib
import os
import random

from clients import KINDS, act
from conftest import MIXED_SECONDS, adds_up, run

PARTS = 10
WARM = 3         # parts after which everything has been as large as it gets
WORKERS = 16
SLACK = 4 << 20  # of the server's memory: where the allocator happens to keep what was freed
# ---- what the server holds ----

def tree(pid):
    """The processes of a server: itself, its keeper and its workers."""
    found = [pid]
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in map(int, children.read().split()):
            found += tree(child)
    return found


def anonymous(pid):
    """Memory of its own in bytes: not what is mapped from files."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def held(server):
    pids = tree(server.process.pid)
    return {"memory": anonymous(pids[0]), "of workers": sum(map(anonymous, pids[1:])), "processes": len(pids),
            "descriptors": len(os.listdir(f"/proc/{pids[0]}/fd")), "threads": len(os.listdir(f"/proc/{pids[0]}/task"))}


def test_mixed_load_leaves_nothing_behind(server):
    dice = random.Random(2)
    counts = collections.Counter()
    async def for_a_while(session):
        await act(session, MIXED_SECONDS / PARTS, WORKERS, dice, counts)
    # The pool's memory is the server's from the start but counts only once it is written: all of it, before the first part.
    full = [{"prompt": "All", "n": 400, "max_tokens": 2, "ignore_eos": True, "firstpass": {"width": 400}},
            {"prompt": [f"{i}" + " word" * 440 for i in range(60)], "max_tokens": 1}]
    assert [server.post("/v1/completions", body).status_code for body in full] == [200, 200]
    rests = []
    for part in range(PARTS):
        run(server, for_a_while, MIXED_SECONDS / PARTS + 600)
        adds_up(server)
        server.wait_metrics(lambda m: m["firstpass_http_connections"] <= 2, "closed connections")
        rests.append(held(server))
        print(f"rest {part + 1}: {sum(counts.values())} requests, " + ", ".join(
            f"{name} {value >> 10} KiB" if value > 1 << 20 else f"{name} {value}" for name, value in rests[-1].items()), flush=True)
    print(", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    assert {kind.__name__ for kind in KINDS} == {name.split()[0] for name in counts}
    warm = rests[WARM]
    for rest in rests[WARM + 1:]:
        assert rest["descriptors"] <= warm["descriptors"] and rest["threads"] <= warm["threads"], rests
        assert rest["processes"] <= warm["processes"], rests
        assert rest["memory"] <= warm["memory"] + SLACK, rests
