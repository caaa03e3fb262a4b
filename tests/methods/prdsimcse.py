from tests.methods.tested import Tested

TESTED = Tested(
    neutral={"negative_prefix": "none", "positive_prefix": "none", "denominator": "own"},
    # The default prefix is for sentences of eight words and more.
    exact={"positive_prefix": "one-um"},
    views=3,
    passes=(("BertModel", "parameters", 24),),  # its second prefix makes a negative
    combinations=("prdsimcse+l2pcsr",),
)
