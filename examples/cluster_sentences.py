"""Group the lines of a file by meaning.

python examples/cluster_sentences.py runs/quickstart/best sentences.txt 8
"""

import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans


def main(repository: str, file: str, clusters: str) -> None:
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    model = SentenceTransformer(repository)
    embeddings = model.encode(lines, normalize_embeddings=True)  # of length 1, so that k-means groups by cosine
    groups = KMeans(int(clusters), n_init=10, random_state=0).fit_predict(embeddings)
    for group in sorted(set(groups)):
        print(f"group {group + 1}")
        print(*(f"  {line}" for line, its_group in zip(lines, groups, strict=True) if its_group == group), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
