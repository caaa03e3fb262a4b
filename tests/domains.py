"""Adapt an encoder to the sentences of four domains, and score it by each domain's own labels.

python -m tests.domains sentence-transformers/all-MiniLM-L6-v2 SentEval/data runs/domains

The zoo's recipes stand beside sentence-transformers' two ways for sentences alone, TSDAE and SimCSE, with the learning
rates of its examples. Each makes 100 updates of 64 sentences in bfloat16 without seeing a label, and its last weights
are scored. `scores.json` has a row for each run; a run that is in it is not made again.
"""

import random
import subprocess
import sys
from itertools import product
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss, MultipleNegativesRankingLoss

from csezoo.training.environment import versions
from csezoo.training.evaluation import evaluate_tasks
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.evaluation.tasks.transfer import load_transfer_task
from csezoo.training.files import read_json, write_json

UPDATES, BATCH, SEEDS = 100, 64, (1, 2, 3)
RECIPES = ("adapt", "adapt-distil")
RATES = {"TSDAE": 3e-5, "SimCSE": 5e-5}  # of sentence-transformers' examples


def main(base: str, data: str, out: str) -> None:
    directory = Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    scores = directory / "scores.json"
    rows = read_json(scores, list) if scores.exists() else []
    made = {(row["domain"], row["way"], row["seed"]) for row in rows}
    runs = [("as served", None), *((way, seed) for seed in SEEDS for way in (*RECIPES, *RATES))]
    for (way, seed), (domain, (sentences, task)) in product(runs, domains(data).items()):
        if (domain, way, seed) in made:
            continue
        model = directory / f"{domain}-{way}-{seed}"
        if way in RECIPES:
            file = directory / f"{domain}.txt"
            file.write_text("\n".join(sentences), encoding="utf-8")
            train_recipe(way, base, file, model, seed)
        elif seed is not None:
            train_sentence_transformer(way, base, sentences, model, seed)
        encode, receipt = load_encoder(base if seed is None else str(model / "best"))
        (result,) = evaluate_tasks(encode, [task], receipt=receipt)
        rows.append({"domain": domain, "way": way, "seed": seed, "versions": versions(), "result": result})
        write_json(scores, rows)
        print(f"{domain}, {way}, seed {seed}: {result['task']} {result['value']:.2f}", flush=True)


def domains(data: str) -> dict[str, tuple[list[str], object]]:
    """Return the sentences of each domain, without labels, and the task that judges it.

    CR is scored by cross-validation, so all of its sentences are read, and MR's beside them. Of the others, the
    training part is read.
    """
    cr, mr, trec, mrpc = (load_transfer_task(name, data, "fast") for name in ("CR", "MR", "TREC", "MRPC"))
    questions, news = ({text for texts, _ in task.parts["train"] for text in texts} for task in (trec, mrpc))
    return {
        "reviews": (sorted(cr.sentences() | mr.sentences()), cr),
        "questions": (sorted(questions), trec),
        "captions": (sorted(load_task("SICK-R-train", data).sentences()), load_task("SICK-R", data)),
        "news": (sorted(news), mrpc),
    }


def train_recipe(recipe: str, base: str, file: Path, output: Path, seed: int) -> None:
    """Train a recipe of the zoo on the lines of a file; the last weights are kept."""
    command = f"csezoo train {recipe} --max_steps {UPDATES} --batch_size {BATCH} --seeds {seed} --mixed_precision bf16"
    command += " --eval_data none --select_by last"
    paths = ["--base_model", base, "--train_file", str(file), "--output_dir", str(output)]
    subprocess.run([*command.split(), *paths], check=True)


def train_sentence_transformer(way: str, base: str, sentences: list[str], output: Path, seed: int) -> None:
    """Train with sentence-transformers' own loss for sentences alone."""
    model = SentenceTransformer(base)
    if way == "TSDAE":
        draw = random.Random(seed)
        rows = Dataset.from_dict({"damaged": [damaged(text, draw) for text in sentences], "original": sentences})
        loss = DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
    else:
        rows = Dataset.from_dict({"anchor": sentences, "positive": sentences})
        loss = MultipleNegativesRankingLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(output),
        max_steps=UPDATES,
        per_device_train_batch_size=BATCH,
        learning_rate=RATES[way],
        bf16=True,
        use_cpu=not torch.accelerator.is_available(),
        seed=seed,
        save_strategy="no",
        report_to="none",
    )
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss).train()
    model.save_pretrained(str(output / "best"))


def damaged(text: str, draw: random.Random) -> str:
    """Delete each word with probability 0.6, as in TSDAE (Wang et al. 2021, section 3.1); one word stays."""
    words = text.split()
    return " ".join(word for word in words if draw.random() > 0.6) or draw.choice(words)


if __name__ == "__main__":
    main(*sys.argv[1:])
