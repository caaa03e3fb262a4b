"""Load a model of the zoo with transformers alone, and compare sentences.

python examples/embed_sentences.py runs/quickstart/best "The cook bakes bread." "Bread is baked by the cook."
"""

import sys

from transformers import AutoModel


def main(repository: str, *sentences: str) -> None:
    model = AutoModel.from_pretrained(repository, trust_remote_code=True)
    embeddings = model.encode(list(sentences), normalize_embeddings=True)
    cosines = embeddings @ embeddings.T
    for sentence, row in zip(sentences, cosines, strict=True):
        print("  ".join(f"{cosine:5.2f}" for cosine in row), " ", sentence)


if __name__ == "__main__":
    main(*sys.argv[1:])
