from datasets import Dataset
from embedding import embed_all
from mteb.models import SentenceTransformerEncoderWrapper
from mteb_task import description
from torch.utils.data import DataLoader

TASK = description("Texts", "texts")


def load(directory):
    # What `mteb.get_model` uses for a repository on the Hub.
    model = SentenceTransformerEncoderWrapper(str(directory), device="cpu")

    def encode(texts):
        batches = DataLoader(Dataset.from_dict({"text": texts}), batch_size=32)
        return model.encode(batches, task_metadata=TASK, hf_split="test", hf_subset="default")

    return encode


embed_all(load, "mteb", "sentence-transformers")
