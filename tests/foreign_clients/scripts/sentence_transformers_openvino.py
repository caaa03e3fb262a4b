from embedding import embed_all
from sentence_transformers import SentenceTransformer

# Without the hint, OpenVINO may compute in bfloat16.
SETTINGS = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}

embed_all(
    lambda directory: (
        SentenceTransformer(str(directory), device="cpu", backend="openvino", model_kwargs=SETTINGS).encode
    ),
    "sentence-transformers",
    "transformers",
    "optimum-intel",
    "openvino",
)
