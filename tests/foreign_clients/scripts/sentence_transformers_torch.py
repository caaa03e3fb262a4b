from embedding import embed_all
from sentence_transformers import SentenceTransformer

embed_all(
    lambda directory: SentenceTransformer(str(directory), device="cpu").encode,
    "sentence-transformers",
    "transformers",
)
