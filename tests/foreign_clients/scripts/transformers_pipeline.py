import json

import numpy as np
from embedding import embed_all
from transformers import pipeline

# The vectors of the tokens are what a pipeline returns; these poolings need nothing else.
POOLED = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(0),
    "max": lambda tokens: tokens.max(0),
    "lasttoken": lambda tokens: tokens[-1],
}


def load(directory):
    extract = pipeline("feature-extraction", model=str(directory), device="cpu")
    modes = json.loads((directory / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    (mode,) = [key.split("_")[2] for key, value in modes.items() if value is True]

    def encode(texts):
        found = extract(texts, tokenize_kwargs={"truncation": True})
        return [POOLED[mode](np.array(tokens[0])) for tokens in found]

    return encode


embed_all(load, "transformers")
