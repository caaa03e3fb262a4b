"""Every number in the documentation comes from a report: the lines of a page are made again from the files.

In a line, `…` is what the page adds to the numbers of the file.
"""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from csezoo.training.evaluation.report import AVERAGE, average
from csezoo.training.evaluation.tasks.names import DEV_TASK, STS_TASKS
from csezoo.training.recipes import load_recipe
from csezoo.training.reproducing.manifests import load_item

DOCS = Path(__file__).parents[1] / "docs"
CARDS = DOCS.parent / "model_cards"
BENCHMARKS = CARDS / "benchmarks"


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def stand_in(name):
    """The results of a table that was made on a stand-in."""
    return read(DOCS / "stand-in" / f"{name}.json")


def spread(numbers):
    return f"{mean(numbers):.2f} ± {stdev(numbers):.2f}" if len(numbers) > 1 else f"{numbers[0]:.2f}"


# --- docs/speed.md


def link(report):
    return f"](../model_cards/benchmarks/{report.name})"


def races():
    others = re.compile("memory-|start|epoch-|scaling|short|soak|encode-long|device-h200|layouts")
    for report in sorted(path for path in BENCHMARKS.glob("*.json") if not others.match(path.name)):
        measured = read(report)
        for made in measured.get("sets", {"": measured}).values():
            assert all(len(seconds) >= 5 for seconds in made["seconds"].values())
            row = f"{link(report)} | {made['ratio']:.3f} |"
            if "against padded" in measured:
                against = measured["against padded"]
                row += f" {measured['cpu_ratio']:.3f} |…, R* {measured['floor']:.3f}"
                row += f" | {against['speedup']:.2f} | {against['limit']:.2f} |"
            elif "floor" in measured:
                row += f"…, R* {measured['floor']:.3f} |"
            yield row


def memory_of_updates():
    for report in BENCHMARKS.glob("memory-*.json"):
        measured = read(report)
        ours, usual = (size / 1e6 for size in measured["peak bytes"].values())
        ratio = f"{measured['memory ratio']:.3f} | {ours:,.0f} MB against {usual:,.0f} MB"
        yield f"{link(report)} | {ratio} | {measured['floor']:.3f} |"


def parts_of_an_update():
    for report in BENCHMARKS.glob("epoch-*.json"):
        measured = read(report)
        parts = [measured["parts"][part] for part in ("products", "elementwise", "host", "data", "checkpoint")]
        cells = [f"{seconds / measured['update']:.1%}" for seconds in (*parts, measured["floor"])]
        yield f"{link(report)} | {' | '.join(cells)} |"


def updates_on_a_gpu():
    updates = read(BENCHMARKS / "device-h200.json")["updates"]
    made = {(row["method"], row["batch_size"], row["layout"]): row for row in updates if not row["compiled"]}
    for method, sentences, layout in made:
        if layout == "packed":
            both = [made[method, sentences, each] for each in ("padded", "packed")]
            times = [f"{1000 / row['updates per second']:.0f} ms" for row in both]
            fastest = min(row["seconds for 10^6 sentences"] for row in both)
            memory = [f"{row['peak bytes'] / 1e9:.1f} GB" for row in both]
            yield f"| {' | '.join([method, str(sentences), *times, f'{fastest:.0f} s', *memory])} |"


def layouts_on_a_gpu():
    measured = read(BENCHMARKS / "layouts-h200.json")
    made = {row["setting"]: row["milliseconds"] for row in measured["updates"]}
    compiled, graphs = made["simcse 512 compiled"], made["simcse 64 compiled, CUDA graphs"]
    yield f"a million sentences take {min(compiled) / 0.512:.0f} to {max(compiled) / 0.512:.0f} s"
    yield f"sentences takes {min(compiled):.0f} to {max(compiled):.0f} ms"
    yield f"Compiled {min(made['simcse 64 compiled']):.0f} ms, and with CUDA graphs…{min(graphs):.0f} ms"
    yield f"take {measured['kernels of simcse 512 packed']:.0f} ms of the {min(made['simcse 512 packed']):.0f} ms"


def starts():
    for report in BENCHMARKS.glob("start*.json"):
        made = read(report)["starts"]
        lines, longest = list(made.items())[-1]
        seconds = [f"{longest[start]['seconds']:.1f} s" for start in ("first", "second")]
        memory = max(start["memory"] for start in longest.values()) / 1e9
        yield f"| [{int(lines):,}{link(report)} | {' | '.join(seconds)} | {memory:.2f} GB |"
        yield f" {longest['second']['seconds'] - made['10000']['second']['seconds']:.1f} s longer"


def scaling():
    axes = read(BENCHMARKS / "scaling.json")["axes"]

    def times(axis, value, other):
        one, another = (axes[axis][point]["rows per second"] for point in (value, other))
        return f"{one / another:.2f} times"

    yield f"two processes on two cores train {times('processes', '2', '1')} as many sentences"
    yield f"batches of 128 train {times('batch_size', '128', '16')} as many as batches of 16"
    yield f"with one inner step, training is {times('inner_steps', '1', '4')} as fast as with four"


def memory_over_time():
    for name, made in read(BENCHMARKS / "soak.json")["programs"].items():
        growth = made["growth"]["rss"] / 2**20
        assert made["growth"]["files"] == 0
        yield f"{name} {max(made['rss']) / 2**20:.0f} MiB at most, {growth:+.1f} MiB;…open files +0."
    long = read(BENCHMARKS / "encode-long.json")
    made = long["programs"]["encoding"]
    rate, memory, growth = long["lines"] / made["second"][-1], max(made["rss"]), made["growth"]["rss"]
    yield f"json)): {rate:,.0f} rows a second, {memory / 2**20:,.0f} MiB at most, {growth / 2**20:+.1f} MiB\n"


SPEED = [races, memory_of_updates, parts_of_an_update, updates_on_a_gpu, layouts_on_a_gpu, starts, scaling]
SPEED += [memory_over_time]


# --- docs/results.md


def runs():
    made = [(run.parent.name, f"../model_cards/{run.parent.name}", read(run)) for run in CARDS.glob("*/results.json")]
    made += [(row["name"], "stand-in/similar-lengths.json", row) for row in stand_in("similar-lengths")["rows"]]
    for name, link, run in made:
        if "summary" in run:
            scores = {entry["task"]: f"{entry['mean']:.2f} ± {entry['sd']:.2f}" for entry in run["summary"]}
        else:  # a run of one seed
            scores = {result["task"]: f"{result['value']:.2f}" for result in run["results"]}
            scores[AVERAGE] = f"{average(run['results']):.2f}"
        yield f"| [`{name}`]({link}) | {scores[DEV_TASK]} | {scores[AVERAGE]} |"


def untrained_encoders():
    for file in CARDS.glob("untrained/*.json"):
        results = read(file)["results"]
        (dev,) = [result["value"] for result in results if result["task"] == DEV_TASK]
        name = f"[untrained, {results[0]['pooling']}](../model_cards/untrained/{file.name})"
        yield f"| {name} | {dev:.2f} | {average(results):.2f} |"


def short_vectors():
    for report in ("short.json", "short-refined.json"):
        rows: dict[tuple[str, int], list[str]] = {}
        for point in read(BENCHMARKS / report)["points"]:
            cell = f"{spread(point['spearman'])} / {mean(point['recall@10']):.1f}"
            rows.setdefault((point["label"], point["dimensions"]), []).append(cell)
        yield from (f"| {label} | {size} | {' | '.join(cells)} |" for (label, size), cells in rows.items())


def papers_tables():
    for file in DOCS.glob("stand-in/*-table-*.json"):
        table = read(file)
        for row in table["rows"]:
            if row["runs"]:
                cells = [f"{cell['mean']:.2f} ± {cell['sd']:.2f} ({cell['n']})" for cell in row["cells"].values()]
                number = table["item"].rpartition("-")[2]
                yield f"| table {number} | {row['name']} | {' | '.join(cells)} |"
            else:
                assert row["reasons"][0].startswith("not run: ")


def learning_rates():
    scores: dict[str, list[float]] = {}
    for row in stand_in("zoo-learning-rates")["rows"]:
        scores.setdefault(row["name"].rpartition(", ")[0], []).append(row["cells"]["STS-B dev."]["mean"])
    settings = {row.label: row.set for row in load_item("zoo/methods").rows}
    for method, three in scores.items():
        name = method.replace(", same", " with the same").replace(", similar", " on similar")
        best = f"{settings[f'400 updates, {name}']['learning_rate']:.0e}".replace("e-0", "e-")
        rates = dict(zip(["1e-5", "3e-5", "1e-4"], three, strict=True))
        assert rates[best] == max(three), "the manifest has another rate than the best"
        cells = [f"**{score:.2f}**" if rate == best else f"{score:.2f}" for rate, score in rates.items()]
        shorter = settings.get(f"SimCSE's time, {name}", {"max_steps": 400})
        yield f"| {name} | {' | '.join(cells)} | {shorter['max_steps'] + shorter.get('nli_steps', 0)} |"


def compared(row):
    """The cells of a row of a compared table: dev score, average of the seven tests, transfer, and the comparison."""
    cells = [row["cells"][name] for name in ("STS-B dev.", "Avg.", "Transfer avg.")]
    average = cells[1]
    p = "" if average["p"] is None else f"{average['low']:+.2f} to {average['high']:+.2f}, p {average['p']:.3f}"
    return " | ".join([*(f"{cell['mean']:.2f} ± {cell['sd']:.2f}" for cell in cells), p])


def methods_on_one_base():
    rows = {row.label: row for row in load_item("zoo/methods").rows}
    for row in stand_in("zoo-methods")["rows"]:
        keys = rows[row["name"]].set
        updates = keys["max_steps"] + keys.get("nli_steps", 0)
        shown = "" if row["name"].startswith("400 updates") else f" {updates} |"
        yield f"| {rows[row['name']].name} |{shown} {compared(row)} |"


def methods_on_a_public_encoder():
    groups: dict[str, list[dict]] = {}
    for run in read(DOCS / "all-minilm-l6.json"):
        groups.setdefault(run["run"].rsplit("-", 1)[0], []).append(run)
    for name, made in groups.items():
        adapter = f"{name.removesuffix('-lora')}-all-minilm-l6"
        if (CARDS / adapter).is_dir():
            name = f"[`{adapter}`](../model_cards/{adapter})"
        if name != "as-served-sup-full":
            scores = [spread([run[key] for run in made]) for key in ("best_dev", "average")]
            yield f"| {name} | {' | '.join(scores)} | {len(made)} |"


def with_seeds(file, key):
    """The line of each run: dev score, average of the tests, number of seeds; and its first seed."""
    seeds: dict[str, list[dict]] = {}
    for run in read(DOCS / file):
        seeds.setdefault(run[key], []).append(run)
    for name, runs in seeds.items():
        scores = zip(*((run["results"][0]["value"], average(run["results"])) for run in runs), strict=True)
        yield f"| {name} | {' | '.join(map(spread, scores))} | {len(runs)} |", runs[0]


def methods_on_sentences_alone():
    for line, first in with_seeds("all-minilm-l6-alone.json", "method"):
        gain = first["gain"]
        yield f"{line} {gain['difference']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f}) |"


def soups_beside_triplets():
    for line, _ in with_seeds("all-minilm-l6-soups.json", "run"):
        yield line


def transfer_of_adapters():
    for model in read(DOCS / "all-minilm-l6-transfer.json"):
        values = [result["value"] for result in model["results"]]
        yield f"{model['model']}… | {' | '.join(f'{value:.2f}' for value in (*values, mean(values)))} |"


def explanations_that_were_tried():
    """Dev scores before and at best, and the average of the tests."""
    made = stand_in("zoo-methods-promptbert")
    averages = {}
    for which, base, updates in (("longer", "B", "1,600"), ("earlier", "A", "400")):
        for row in made[which]["rows"]:
            averages[row["name"].rpartition(", ")[2], base, updates] = row["cells"]["Avg."]["mean"]
    firsts = {row["name"]: row["runs"][0]["results"] for row in stand_in("zoo-methods")["rows"]}
    for name in ("SimCSE", "PromptBERT"):
        results = firsts[f"400 updates, {name}"]
        averages[name, "B", "400"] = mean(each["value"] for each in results if each["task"] in STS_TASKS)
    assert len(averages) == len(made["dev"])
    for (name, base, updates), tests in averages.items():
        steps, scores = zip(*made["dev"][f"{name}-{base}-{updates}".lower().replace(",", "")], strict=True)
        assert steps[0] == 0
        yield f"| {name} | {base} | {updates} | {scores[0]:.2f} | {max(scores):.2f} | {tests:.2f} |"


def the_recipe_of_the_zoo():
    made = stand_in("zoo-nli-then-wiki")
    yield from (f"| {row['name']} | {compared(row)} |" for row in made["rows"])
    for row, more in zip(made["rows"], made["more_seeds"]["rows"], strict=False):
        results = [run["results"] for run in (*row["runs"], *more["runs"])]
        averages = [mean(each["value"] for each in run if each["task"] in STS_TASKS) for run in results]
        quoted = [f"{average:.2f}" for average in averages]
        yield f"| {row['name']} | {' | '.join(quoted)} | {spread(averages)} |"


def baselines():
    for row in stand_in("baselines")["rows"]:
        for side in ("before", "after"):
            columns = zip(*(seed.values() for seed in row[side].values()), strict=True)
            cells = [f"{spread(column)} ({len(column)})" for column in columns]
            yield f"| `{row['recipe']}` | {side} | {' | '.join(cells)} |"
        today = load_recipe(row["recipe"]).to_dict()
        assert {key: today[key] for key in row["changed"]} == {
            key: change["after"] for key, change in row["changed"].items()
        }


RESULTS = [runs, untrained_encoders, short_vectors, papers_tables, learning_rates, methods_on_one_base]
RESULTS += [methods_on_a_public_encoder, methods_on_sentences_alone, soups_beside_triplets, transfer_of_adapters]
RESULTS += [explanations_that_were_tried, the_recipe_of_the_zoo, baselines]


# --- docs/adapt.md


def domains():
    scores: dict[str, dict[str, list[float]]] = {}
    for run in read(DOCS / "all-minilm-l6-domains.json"):
        scores.setdefault(run["way"], {}).setdefault(run["domain"], []).append(run["result"]["value"])
    for way, made in scores.items():
        name = f"`{way}`" if way.startswith("adapt") else way
        name += " of sentence-transformers" if way in ("SimCSE", "TSDAE") else ""
        values = [made.get(domain) for domain in ("reviews", "questions", "captions", "news")]
        cells = [spread(each) if each else "" for each in values]
        yield f"| {name} | {' | '.join(cells)} |"


QUOTES = {"speed": SPEED, "results": RESULTS, "adapt": [domains]}


@pytest.mark.parametrize(("page", "lines"), [(page, lines) for page, parts in QUOTES.items() for lines in parts])
def test_a_page_quotes_the_numbers_of_its_files(page, lines):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    made = list(lines())
    assert made
    for line in made:
        assert re.search(re.escape(line).replace("…", ".*"), text), line
