"""The gates in the order they are asked: cheap ones first, those that need a server last."""

from trtdecode.promote.gate import Gate
from trtdecode.promote.gates import (
    artefacts,
    compatibility,
    contract,
    encoding,
    engines,
    golden,
    leak,
    load,
    memory,
    parity,
)

GATES = (
    artefacts.GATE,
    compatibility.GATE,
    engines.GATE,
    memory.GATE,
    parity.GATE,
    contract.GATE,
    golden.GATE,
    load.GATE,
    leak.GATE,
)
#: Of encoders, which neither stream nor keep a cache.
ENCODER_GATES = (artefacts.GATE, compatibility.GATE, engines.GATE, memory.GATE, encoding.GATE)


def gates_for(task: str) -> tuple[Gate, ...]:
    """The gates of a manifest's task."""
    return GATES if task == "generate" else ENCODER_GATES
