from tests.methods.tested import Tested

TESTED = Tested(
    others={"unigrams": {"kernel_sizes": [1]}, "rectified": {"activation": "relu"}},
    neutral=None,
    views=1,
    passes=(("BertModel", "parameters", 8),),
    own_code=("", "unigrams", "rectified"),
)
