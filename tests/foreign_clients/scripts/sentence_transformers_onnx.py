from embedding import embed_all
from sentence_transformers import SentenceTransformer

embed_all(
    lambda directory: SentenceTransformer(str(directory), device="cpu", backend="onnx").encode,
    "sentence-transformers",
    "transformers",
    "optimum-onnx",
)
