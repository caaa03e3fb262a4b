from tests.methods.tested import Tested

TESTED = Tested(others={"own": {"negative_pairs": "own"}}, neutral=None, passes=(("BertModel", "parameters", 8),) * 2)
