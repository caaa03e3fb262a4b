"""The pages on speed and on short vectors quote the reports of the benchmarks."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[1]
CARDS = ROOT / "model_cards"
SPEED = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
REPORTS = sorted((ROOT / "model_cards" / "benchmarks").glob("*.json"))
MEMORY = [path for path in REPORTS if path.stem.startswith("memory-")]
STARTS = [path for path in REPORTS if path.stem.startswith("start")]
EPOCHS = [path for path in REPORTS if path.stem.startswith("epoch-")]
OTHERS = ("scaling", "short", "short-refined", "soak", "encode-long", "device-h100")
RACES = [path for path in REPORTS if path.stem not in OTHERS and path not in MEMORY + STARTS + EPOCHS]


@pytest.mark.parametrize("report", RACES, ids=lambda path: path.stem)
def test_the_page_of_speed_quotes_the_benchmarks(report):
    rows = [line for line in SPEED.splitlines() if f"(../model_cards/benchmarks/{report.name})" in line]
    measured = json.loads(report.read_text(encoding="utf-8"))
    for row, made in zip(rows, measured.get("sets", {"": measured}).values(), strict=True):
        assert f"| {made['ratio']:.3f} |" in row
        assert all(len(seconds) >= 5 for seconds in made["seconds"].values())
    if "floor" in measured:
        assert f"R* {measured['floor']:.3f}" in rows[0]
    if "against padded" in measured:
        against = measured["against padded"]
        processor = measured["cpu_ratio"]
        assert f"| {processor:.3f} |" in rows[0]
        assert f"| {against['speedup']:.2f} | {against['limit']:.2f} |" in rows[0]


@pytest.mark.parametrize("report", MEMORY, ids=lambda path: path.stem)
def test_the_page_of_speed_quotes_the_memory_of_updates(report):
    (row,) = (line for line in SPEED.splitlines() if f"(../model_cards/benchmarks/{report.name})" in line)
    measured = json.loads(report.read_text(encoding="utf-8"))
    ours, usual = (size / 1e6 for size in measured["peak bytes"].values())
    quoted = f"{measured['memory ratio']:.3f} | {ours:,.0f} MB against {usual:,.0f} MB | {measured['floor']:.3f} |"
    assert row.endswith(f"| {quoted}")


@pytest.mark.parametrize("report", EPOCHS, ids=lambda path: path.stem)
def test_the_page_of_speed_quotes_the_parts_of_an_update(report):
    (row,) = (line for line in SPEED.splitlines() if f"(../model_cards/benchmarks/{report.name})" in line)
    measured = json.loads(report.read_text(encoding="utf-8"))
    shares = {part: seconds / measured["update"] for part, seconds in measured["parts"].items()}
    cells = [f"{shares[part]:.1%}" for part in ("products", "elementwise", "host", "data", "checkpoint")]
    assert row.endswith(f"| {' | '.join(cells)} | {measured['floor'] / measured['update']:.1%} |")


def test_the_page_of_speed_quotes_the_h100():
    updates = json.loads((CARDS / "benchmarks" / "device-h100.json").read_text(encoding="utf-8"))["updates"]
    made = {(row["method"], row["batch_size"], row["layout"]): row for row in updates if not row["compiled"]}
    for method, sentences, layout in made:
        if layout == "packed":
            both = [made[method, sentences, each] for each in ("padded", "packed")]
            times = [f"{1000 / row['updates per second']:.0f} ms" for row in both]
            fastest = min(row["seconds for 10^6 sentences"] for row in both)
            memory = [f"{row['peak bytes'] / 1e9:.1f} GB" for row in both]
            cells = [method, sentences, *times, f"{fastest:.0f} s", *memory]
            assert f"| {' | '.join(map(str, cells))} |" in SPEED


@pytest.mark.parametrize(("report", "lines"), [("short.json", 12), ("short-refined.json", 9)])
def test_the_page_of_results_quotes_the_short_vectors(report, lines):
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows: dict[tuple[str, int], list[str]] = {}
    for point in json.loads((CARDS / "benchmarks" / report).read_text(encoding="utf-8"))["points"]:
        scores, recall = point["spearman"], point["recall@10"]
        cell = f"{mean(scores):.2f} ± {stdev(scores):.2f} / {mean(recall):.1f}"
        rows.setdefault((point["label"], point["dimensions"]), []).append(cell)
    assert len(rows) == lines
    for (label, dimensions), cells in rows.items():
        assert f"| {label} | {dimensions} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize("report", STARTS, ids=lambda path: path.stem)
def test_the_page_of_speed_quotes_the_starts(report):
    rows = [line for line in SPEED.splitlines() if f"(../model_cards/benchmarks/{report.name})" in line]
    lines, made = list(json.loads(report.read_text(encoding="utf-8"))["starts"].items())[-1]
    seconds = [f"{made[start]['seconds']:.1f} s" for start in ("first", "second")]
    memory = max(start["memory"] for start in made.values()) / 1e9
    (row,) = rows
    short = json.loads(report.read_text(encoding="utf-8"))["starts"]["10000"]
    assert f" {made['second']['seconds'] - short['second']['seconds']:.1f} s longer" in SPEED
    assert row.startswith(f"| [{int(lines):,}]") and row.endswith(f"| {' | '.join(seconds)} | {memory:.2f} GB |")


def test_the_page_of_speed_quotes_the_scaling():
    axes = json.loads((ROOT / "model_cards/benchmarks/scaling.json").read_text(encoding="utf-8"))["axes"]
    paragraph = SPEED[SPEED.index("## Scaling") :]
    for axis, value, other in (("processes", "2", "1"), ("batch_size", "128", "16"), ("inner_steps", "1", "4")):
        rates = [axes[axis][point]["rows per second"] for point in (value, other)]
        assert f"{rates[0] / rates[1]:.2f} times" in paragraph, axis


def test_the_page_of_speed_quotes_the_memory_of_the_soak():
    programs = json.loads((ROOT / "model_cards/benchmarks/soak.json").read_text(encoding="utf-8"))["programs"]
    (row,) = (line for line in SPEED.splitlines() if "(../model_cards/benchmarks/soak.json)" in line)
    for name, made in programs.items():
        assert f"{name} {max(made['rss']) / 2**20:.0f} MiB at most, {made['growth']['rss'] / 2**20:+.1f} MiB" in row
        assert made["growth"]["files"] == 0 and "open files +0" in row


def test_the_page_of_speed_quotes_the_encoding_of_a_long_file():
    report = json.loads((ROOT / "model_cards/benchmarks/encode-long.json").read_text(encoding="utf-8"))
    (line,) = (line for line in SPEED.splitlines() if "(../model_cards/benchmarks/encode-long.json)" in line)
    encoding = report["programs"]["encoding"]
    rate, memory = report["lines"] / encoding["second"][-1], max(encoding["rss"]) / 2**20
    growth = encoding["growth"]["rss"] / 2**20
    assert line.endswith(f" {rate:,.0f} rows a second, {memory:,.0f} MiB at most, {growth:+.1f} MiB")
