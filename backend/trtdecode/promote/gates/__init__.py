"""The gates in the order they are asked: cheap ones first, those that need a server last."""

from trtdecode.promote.gates import artefacts, compatibility, contract, engines, golden, leak, load, memory, parity

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
