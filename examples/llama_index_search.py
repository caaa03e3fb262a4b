"""Search the lines of a file with LlamaIndex, whose embeddings load a model with sentence-transformers.

pip install llama-index-core llama-index-embeddings-huggingface
python examples/llama_index_search.py runs/quickstart/best sentences.txt "Who bakes the bread?"
"""

import sys
from pathlib import Path

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding


def main(repository: str, file: str, query: str, nearest: int = 3) -> None:
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    embeddings = HuggingFaceEmbedding(repository)
    index = VectorStoreIndex([TextNode(text=line) for line in lines], embed_model=embeddings)
    for node in index.as_retriever(similarity_top_k=nearest).retrieve(query):
        print(f"{node.score:6.2f}  {node.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
