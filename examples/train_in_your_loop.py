"""Train a method in a loop of your own, on the lines of a file: python FILE BASE SENTENCES OUTPUT [METHOD].

python examples/train_in_your_loop.py google-bert/bert-base-uncased sentences.txt runs/own l2pcsr

`accelerate launch` runs it on several devices. The result is a repository that `SentenceTransformer` loads.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import csezoo


def main(base: str, file: str, output: str, method: str = "simcse") -> None:
    accelerator = Accelerator()
    torch.manual_seed(1)
    model, collator = csezoo.for_training(method, base, max_length=32)
    rows = [{"text": line} for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(rows) < 64:
        sys.exit(f"{file} has {len(rows)} sentences; a batch needs 64")
    batches = DataLoader(rows, batch_size=64, shuffle=True, drop_last=True, collate_fn=collator)
    model.begin("contrastive")  # freezes what the method does not train
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5)
    wrapped, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for number, batch in enumerate(batches, start=1):
        accelerator.backward(wrapped(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.after_update()  # averages of weights, queues
        accelerator.print(number, {name: round(value, 4) for name, value in model.parts.take().items()})
    if accelerator.is_main_process:
        model.serving_model().save_pretrained(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
