"""Train with the arguments of `csezoo.training.train`, sharded on processor cores as on GPUs.

Accelerate shards on GPUs alone: here it is told that its gloo processes are some.
"""

import os
import sys

from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from csezoo.training.train import main

if __name__ == "__main__":
    zero = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED if zero else DistributedType.MULTI_GPU
    main(sys.argv[1:])
    expected = DistributedType.DEEPSPEED if zero else DistributedType.FSDP
    assert AcceleratorState().distributed_type == expected, "it was not sharded"
    # On processor cores, a process that has finished its run sometimes aborts in its exit.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
