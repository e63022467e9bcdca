"""What a run of bench/peers is told as: the table, CSV, a plot, the README's block."""

import os
import platform


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    isas = [name for name in ("avx2", "avx512_vnni", "amx_int8") if name in flags.split()]
    return {"cpu": cpu, "isa": " ".join(isas), "cores": os.cpu_count(), "kernel": platform.release(),
            "load": round(os.getloadavg()[0], 2)}


def floor_text(row):
    if row["floor"] is None:
        return ""
    if row["what"].startswith("pass@1"):
        return "not worse, within noise"
    if row["what"].startswith("perplexity"):
        return f"≤ {row['floor']} % apart"
    return f"{'≤' if row['at_most'] else '≥'} {row['floor']}{row['unit']}"


def cell(value):
    return "" if value is None else str(value)


def table(rows):
    lines = ["| what | llama.cpp | firstpass | ratio or value | floor | met | commit |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        met = {True: "yes", False: "**no**", None: ""}[r["met"]]
        lines.append(f"| {r['what']} | {cell(r['peer'])} | {cell(r['firstpass'])} | {r['value']}{r['unit']} | {floor_text(r)} | {met} | {r['commit']} |")
    return "\n".join(lines)


def csv(rows):
    def quoted(value):
        text = cell(value)
        return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text

    keys = ("what", "peer", "firstpass", "value", "unit", "floor", "met", "commit")
    lines = [",".join(keys)]
    lines += [",".join(quoted(r[key]) for key in keys) for r in rows]
    return "\n".join(lines) + "\n"


def svg(results, caption):
    """Tokens/s against n, one panel a model: plain SVG, no library needed."""
    width, height, left, top = 300, 220, 50, 40
    parts = []
    for i, result in enumerate(results):
        x0 = left + i * (width + 60)
        rows = result["decode"]
        most = max(max(r["tokens_per_s"], r["peer_tokens_per_s"]) for r in rows) * 1.1
        def at(k, v):
            return x0 + k * width / max(1, len(rows) - 1), top + height - v / most * height
        parts.append(f'<text x="{x0}" y="{top - 15}" font-weight="bold">{result["model"]}</text>')
        parts.append(f'<path d="M{x0},{top} v{height} h{width}" fill="none" stroke="#888"/>')
        for share in (0.25, 0.5, 0.75, 1):
            y = top + height - share / 1.1 * height
            parts.append(f'<text x="{x0 - 5}" y="{y + 4:.0f}" text-anchor="end">{share * most / 1.1:.0f}</text>')
        for k, row in enumerate(rows):
            parts.append(f'<text x="{at(k, 0)[0]:.0f}" y="{top + height + 16}" text-anchor="middle">{row["n"]}</text>')
        for key, colour in (("peer_tokens_per_s", "#c60"), ("tokens_per_s", "#06c")):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(k, r[key]) for k, r in enumerate(rows)))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    total = left + len(results) * (width + 60)
    legend = (f'<text x="{left}" y="{top + height + 40}">tokens/s against candidates. <tspan fill="#06c">firstpass</tspan>, '
              f'<tspan fill="#c60">llama.cpp</tspan>. {caption}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{top + height + 60}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}{legend}</svg>\n')


BEGIN, END = "<!-- bench/peers: begin -->", "<!-- bench/peers: end -->"


def caption(report):
    m = report["machine"]
    return f"{report['date']}; {m['cpu']}, {report['threads']} threads, isa {report['isa']}"


def readme_block(report):
    return (f"{BEGIN}\n{caption(report)}; llama.cpp {report['peer']}; medians of {report['rounds']} rounds in turns, prompt "
            f"{report['prompt']}, {report['gen']} generated.\n\n{table(report['rows'])}\n{END}")


def into_readme(text, block):
    """`text` with the block between the marks, which must be there."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise SystemExit(f"bench/peers: the README has no \"{BEGIN}\" … \"{END}\"")
    return text[:begin] + block + text[end + len(END):]
