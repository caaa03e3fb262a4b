"""Train a BERT further by masked language modelling on your sentences, before any contrastive training.

python examples/pretrain_further.py google-bert/bert-base-uncased sentences.txt runs/base --max_steps 2000

The file has a sentence per line. The options are those of `transformers.TrainingArguments`. The same command continues
an interrupted run. The result is a base: `--base_model runs/base`.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn import functional
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

LONGEST = 64  # word pieces


class MaskedLMTrainer(Trainer):
    """Predicts words only at the chosen tokens, 15 %. This saves most of the work of a large vocabulary."""

    def compute_loss(self, model: PreTrainedModel, inputs: dict[str, torch.Tensor], **_: object) -> torch.Tensor:
        labels = inputs.pop("labels")
        chosen = labels != -100
        states = model.base_model(**inputs).last_hidden_state  # (batch, tokens, hidden)
        return functional.cross_entropy(model.cls(states[chosen]), labels[chosen])


def main(base: str, file: str, output_dir: str, *options: str) -> None:
    defaults = ["--per_device_train_batch_size=128", "--learning_rate=3e-4", "--weight_decay=0.01", "--max_steps=2000"]
    defaults += ["--warmup_steps=0.06", "--train_sampling_strategy=group_by_length", "--logging_steps=20"]
    defaults += ["--save_steps=100", "--save_total_limit=2", "--report_to=none"]
    parser = HfArgumentParser(TrainingArguments)
    arguments = parser.parse_args_into_dataclasses([f"--output_dir={output_dir}", *defaults, *options])[0]
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForMaskedLM.from_pretrained(base, dtype="float32")
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    rows = Dataset.from_dict(tokenizer(lines, truncation=True, max_length=LONGEST))
    trainer = MaskedLMTrainer(model, arguments, DataCollatorForLanguageModeling(tokenizer), rows)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir))
    trainer.save_model(output_dir)
    tokenizer.save_pretrained(output_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
