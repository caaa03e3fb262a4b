from embedding import embed_all
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType


def load(directory):
    TextEmbedding.add_custom_model(
        model=str(directory),
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=ModelSource(hf=f"zoo/{directory.name}"),
        dim=0,
        model_file="onnx/model.onnx",
        output_name="sentence_embedding",
    )
    model = TextEmbedding(str(directory), specific_model_path=str(directory))
    return lambda texts: list(model.embed(texts))


embed_all(load, "fastembed", "onnxruntime")
