"""Search the lines of a file with LangChain, whose embeddings load a model with sentence-transformers.

pip install langchain-core langchain-huggingface sentence-transformers
python examples/langchain_search.py runs/quickstart/best sentences.txt "Who bakes the bread?"
"""

import sys
from pathlib import Path

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings


def main(repository: str, file: str, query: str, nearest: int = 3) -> None:
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    embeddings = HuggingFaceEmbeddings(model_name=repository)
    store = InMemoryVectorStore.from_texts(lines, embeddings)
    for document, cosine in store.similarity_search_with_score(query, nearest):
        print(f"{cosine:6.2f}  {document.page_content}")


if __name__ == "__main__":
    main(*sys.argv[1:])
