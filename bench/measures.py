"""One function for each part of bench/peers.  Each returns rows of the table:
{"what", "peer", "firstpass", "value", "unit", "floor", "met"}; value is the ratio where there are two sides.  met is None where no
floor is asked."""

import concurrent.futures
import json
import random
import statistics

import clients
import peer as peers
from peer import run, say

GENERATED = 384  # most tokens of a candidate


def row(what, theirs, ours, value, unit, floor, at_most=False, met=None):
    """One line; met follows from the floor unless it is given."""
    if met is None and floor is not None and value is not None:
        met = value <= floor if at_most else value >= floor
    return {"what": what, "peer": theirs, "firstpass": ours, "value": value, "unit": unit, "floor": floor, "at_most": at_most,
            "met": met}


def ratio(what, theirs, ours, floor, unit="×"):
    return row(what, round(theirs, 1), round(ours, 1), round(ours / theirs, 2), unit, floor)


# ---- decode, prefill, memory: llama-batched-bench beside `firstpass bench decode` ----

DECODE_FLOORS = {("0.5b", 1): 1.3, ("0.5b", 32): 3.5, ("0.5b", 64): 3.5, ("135m", 1): 1.1, ("135m", 32): 3.5, ("1.5b", 1): 1.1,
                 ("1.5b", 32): 2.8}


def own_decode(model, n, args, *more, isa=None):
    out = run([args.firstpass, "bench", "decode", "--model", model, "--n", ",".join(map(str, n)), "--prompt", args.prompt, "--gen",
               args.gen, "--threads", args.threads, "--isa", isa or args.isa, "--json", *more], stdout=-1, stderr=-3, text=True).stdout
    return json.loads(out)


def rounds(name, model, peer, args):
    """Both sides in turns, the order turned round every time: {"peer": [{n: (decode, prefill)}], "firstpass": [report]}"""
    sides = {"peer": [], "firstpass": []}

    def theirs():
        return peers.batched_bench(peer, model, args.n, args)

    def ours():
        return own_decode(model, args.n, args, "--no-share")

    for r in range(args.rounds):
        turns = [("peer", theirs), ("firstpass", ours)]
        for side, function in turns if r % 2 == 0 else turns[::-1]:
            result = function()
            sides[side].append(result)
            speeds = {n: v[0] for n, v in result.items()} if side == "peer" else {x["n"]: x["tokens_per_s"] for x in result["runs"]}
            say(f"{name} round {r + 1}/{args.rounds} {side}: " + ", ".join(f"n={n}: {v:.1f}" for n, v in speeds.items()))
    return sides


def summary(name, sides, args):
    """Medians over the rounds."""
    decode = []
    for n in args.n:
        ours = [x for report in sides["firstpass"] for x in report["runs"] if x["n"] == n]
        shares = [x["share_of_ceiling"] for x in ours if x["share_of_ceiling"]]
        theirs = statistics.median(r[n][0] for r in sides["peer"])
        mine = statistics.median(x["tokens_per_s"] for x in ours)
        decode.append({"n": n, "peer_tokens_per_s": round(theirs, 1), "tokens_per_s": round(mine, 1), "ratio": round(mine / theirs, 2),
                       "gmac_per_s": round(statistics.median(x["gmac_per_s"] for x in ours), 1),
                       "share_of_ceiling": round(statistics.median(shares), 3) if shares else None})
    # Prefill doesn't depend on n: all of a round's figures are samples of one.
    prefill = {"peer_tokens_per_s": statistics.median(v[1] for r in sides["peer"] for v in r.values()),
               "tokens_per_s": statistics.median(x["prefill_tokens_per_s"] for r in sides["firstpass"] for x in r["runs"])}
    return {"model": name, "isa": sides["firstpass"][0]["isa"], "decode": decode, "prefill": prefill}


def decode(name, model, peer, args, report):
    sides = rounds(name, model, peer, args)
    result = summary(name, sides, args)
    report["results"].append(result)
    rows = [ratio(f"decode, {name}, n = {d['n']}, tokens/s", d["peer_tokens_per_s"], d["tokens_per_s"], DECODE_FLOORS.get((name, d["n"])))
            for d in result["decode"]]
    p = result["prefill"]
    rows.append(ratio(f"prefill, {name}, tokens/s", p["peer_tokens_per_s"], p["tokens_per_s"], 3.0 if name == "0.5b" else None))
    return rows + shares(name, model, result, args)


def shares(name, model, result, args):
    """GMAC/s of the widest batch as share of the instruction that computes it.  Tiles of AMX can't be filled by blocks of 32 columns,
    so that its share says little: there vpdpbusd's is measured, too."""
    last = result["decode"][-1]
    if not last["share_of_ceiling"]:
        return []
    of = {result["isa"]: (last["gmac_per_s"], last["share_of_ceiling"])}
    if result["isa"] == "amx":
        runs = [own_decode(model, [last["n"]], args, "--no-share", isa="avx512vnni")["runs"][0] for _ in range(args.rounds)]
        of["avx512vnni"] = tuple(statistics.median(r[key] for r in runs) for key in ("gmac_per_s", "share_of_ceiling"))
    return [row(f"share of the int8 ceiling of {isa}, {name}, n = {last['n']}", None, f"{round(gmacs, 1)} GMAC/s", round(100 * share, 1), " %",
                50 if (name, last["n"], isa != "amx") == ("0.5b", 64, True) else None)
            for isa, (gmacs, share) in of.items()]


def memory(name, model, peer, args, report):
    """Peak resident memory of N = 64, over the model file and the KV pool."""
    m = own_decode(model, [64], args)["memory"]
    peak, room = m["peak_resident_bytes"], m["model_file_bytes"] + m["kv_pool_bytes"]
    if not peak:
        raise SystemExit("bench/peers: this kernel doesn't let the peak of resident memory be measured")
    # The pool is address space until it is used: what must hold is peak <= 1.6 file + pool; told also without the pool.
    limit = 1.6 * m["model_file_bytes"] + m["kv_pool_bytes"]
    report["memory"][name] = {**m, "limit_bytes": int(limit)}
    floor = 1.6 if name == "0.5b" else None
    return [row(f"peak resident memory, {name}, N = 64, times the model file (KV pool of {m['kv_pool_bytes'] >> 20} MiB not deducted)",
                None, f"{peak >> 20} MiB", round(peak / m["model_file_bytes"], 2), "×", floor, at_most=True,
                met=None if floor is None else peak <= limit and peak <= room * 1.6)]


# ---- rows per token: the trie ----

def rows_per_token(name, model, peer, args, report):
    """Rows computed per token returned, sharing on: what the server's counters say of plain n = 16 requests; rows of the prompts
    left out."""
    totals = {"rows": 0.0, "tokens": 0.0}
    with peers.own_server(args.firstpass, model, args) as url:
        for task, problem in clients.problems(3, 7, args.limit):
            before = clients.counters(url)
            clients.post(url, clients.question(problem, n=16, max_tokens=GENERATED, seed=1))
            after = clients.counters(url)
            gained = {key: after[f"firstpass_{key}_total"] - before[f"firstpass_{key}_total"]
                      for key in ("engine_rows", "generated_tokens", "prompt_tokens", "prompt_tokens_cached")}
            # The prompt's last token is the first row of the candidates.
            prompt = gained["prompt_tokens"] - gained["prompt_tokens_cached"] - 1
            rows, tokens = gained["engine_rows"] - max(0, prompt), gained["generated_tokens"]
            totals["rows"] += rows
            totals["tokens"] += tokens
            say(f"{name} {task}: {rows:.0f} rows for {tokens:.0f} tokens, {rows / tokens:.3f}")
    value = totals["rows"] / totals["tokens"]
    report["rows_per_token"][name] = {**totals, "rows_per_token": value}
    return [row(f"rows computed per token returned, {name}, N = 16", None, f"{totals['tokens']:.0f} tokens", round(value, 3), "",
                0.60 if name == "0.5b" else None, at_most=True)]


# ---- seconds to the first passing candidate ----

def drive(url, function, tasks, n, what, max_tokens):
    results = []
    for task, problem in tasks:
        results.append({"task": task, **function(url, problem, n, max_tokens, 1)})
        last = results[-1]
        say(f"{what} {task}: {last['seconds']:.2f} s, {'passed' if last['passed'] else 'none passed'}, {last['generated']} tokens")
    return {"mean": statistics.mean(r["seconds"] for r in results), "passed": sum(r["passed"] for r in results), "tasks": results}


def first_pass(name, model, peer, args, report):
    """Against the two ways to drive the peer; the servers run one after the other, never at the same moment."""
    n, tasks = 16, clients.problems(0, args.stride, args.tasks)
    with peers.own_server(args.firstpass, model, args) as url:
        ours = drive(url, clients.own_race, tasks, n, "firstpass", GENERATED)
    result, rows = {"firstpass": ours}, []
    for what, function, most in (("best-of-n", clients.best_of, 384), ("race", clients.race, 320)):
        with peers.server(peer, model, n, args) as url:
            theirs = drive(url, function, tasks, n, f"peer, {what}", most)
        result[what] = theirs
        rows.append(row(f"seconds to the first pass, {name}, N = {n}, mean of {len(tasks)} tasks, against {what} clients "
                        f"({theirs['passed']} and {ours['passed']} passed)", round(theirs["mean"], 2), round(ours["mean"], 2),
                        round(theirs["mean"] / ours["mean"], 1), "×", 10 if name == "0.5b" else None))
    report["first_pass"][name] = result
    return rows


# ---- quality ----

def perplexity(name, model, peer, args, report):
    text = args.root / "bench" / "perplexity.txt"
    theirs = peers.perplexity(peer, model, text, args)
    out = run([args.firstpass, "bench", "perplexity", "--model", model, "--file", text, "--threads", args.threads, "--isa", args.isa,
               "--json"], stdout=-1, stderr=-3, text=True).stdout
    ours = json.loads(out)["perplexity"]
    apart = 100 * (ours / theirs - 1)
    report["perplexity"][name] = {"peer": theirs, "firstpass": ours}
    say(f"{name} perplexity: peer {theirs:.4f}, firstpass {ours:.4f}")
    return [row(f"perplexity of bench/perplexity.txt, {name}, how far apart", round(theirs, 4), round(ours, 4), round(apart, 2), " %", 0.5,
                at_most=True, met=abs(apart) <= 0.5)]


def sample(url, path, tasks, n):
    """{task: [text]}; what `path` has already isn't asked for again, so that a long run can be done in pieces."""
    known = {}
    if path and path.exists():
        known = {entry["task"]: entry["texts"] for entry in map(json.loads, path.read_text().splitlines())}
    for task, problem in tasks:
        if len(known.get(task, [])) == n:
            continue
        known[task] = clients.texts(clients.post(url, clients.question(problem, n=n, max_tokens=GENERATED, seed=1)))
        say(f"{path.stem if path else ''} {task}")
        if path:
            with path.open("a") as out:
                out.write(json.dumps({"task": task, "texts": known[task]}) + "\n")
    return {task: known[task] for task, _ in tasks}


def judge(samples, tasks):
    """{task: share of its candidates that pass}"""
    with concurrent.futures.ThreadPoolExecutor(clients.CHECKERS) as pool:
        return {task: statistics.mean(pool.map(lambda text, p=problem: clients.passes(p, text), samples[task])) for task, problem in tasks}


def bootstrap(differences, times=10000, seed=1):
    """The 95 % interval of the mean of paired differences, by drawing tasks with replacement."""
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(times))
    return means[int(0.025 * times)], means[int(0.975 * times) - 1]


def pass_at_1(name, model, peer, args, report):
    """Both sides' candidates, judged by the same checker."""
    n, tasks = 8, clients.problems(0, 4, args.limit)
    folder = args.samples
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    sides = {"peer": lambda: peers.server(peer, model, n, args), "firstpass": lambda: peers.own_server(args.firstpass, model, args)}
    shares = {}
    for side, serve in sides.items():
        with serve() as url:
            samples = sample(url, folder / f"{side}-{name}.jsonl" if folder else None, tasks, n)
        shares[side] = judge(samples, tasks)
    means = {side: statistics.mean(s.values()) for side, s in shares.items()}
    low, high = bootstrap([shares["firstpass"][task] - shares["peer"][task] for task, _ in tasks])
    report["pass_at_1"][name] = {**means, "tasks": len(tasks), "candidates": n, "interval_95": [low, high]}
    return [row(f"pass@1, {name}, {len(tasks)} tasks x {n}; 95 % interval of the difference {100 * low:+.1f} to {100 * high:+.1f} points",
                f"{100 * means['peer']:.1f} %", f"{100 * means['firstpass']:.1f} %",
                round(100 * (means["firstpass"] - means["peer"]), 1), " points", 0, met=high >= 0)]


PARTS = {"decode": decode, "memory": memory, "rows": rows_per_token, "first_pass": first_pass, "perplexity": perplexity, "pass1": pass_at_1}
# Parts that the issue asks of the default model only; the others run on every model.
DEFAULT_ONLY = {"memory", "rows", "first_pass", "pass1"}
