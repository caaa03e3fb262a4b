from embedding import embed_all
from sentence_transformers import SentenceTransformer

embed_all(
    lambda directory: SentenceTransformer(str(directory), device="cpu", trust_remote_code=True).encode,
    "sentence-transformers",
    "transformers",
)
