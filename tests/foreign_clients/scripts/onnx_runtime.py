import numpy as np
from embedding import embed_all
from onnxruntime import InferenceSession
from transformers import PreTrainedTokenizerFast


def load(directory):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    session = InferenceSession(directory / "onnx" / "model.onnx")

    def encode(texts):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        return session.run(["sentence_embedding"], inputs)[0]

    return encode


embed_all(load, "onnxruntime", "transformers")
