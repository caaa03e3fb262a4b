"""Train with the arguments of `csezoo.training.train`, sharded on processor cores as on GPUs.

Accelerate shards on GPUs alone: here it is told that its gloo processes are some.
"""

import sys

from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from csezoo.training.train import main

if __name__ == "__main__":
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    main(sys.argv[1:])
    assert AcceleratorState().distributed_type == DistributedType.FSDP, "it was not sharded"
