"""Find the lines of a file that are closest in meaning to a question.

python examples/semantic_search.py runs/quickstart/best sentences.txt "Who bakes the bread?"
"""

import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer


def main(repository: str, file: str, *queries: str, nearest: int = 5) -> None:
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    model = SentenceTransformer(repository)
    corpus = model.encode(lines, normalize_embeddings=True)
    questions = model.encode(list(queries), normalize_embeddings=True)
    for query, cosines in zip(queries, questions @ corpus.T, strict=True):
        print(query)
        for place in (-cosines).argsort(kind="stable")[:nearest]:
            print(f"{cosines[place]:6.2f}  {lines[place]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
