"""The diagnosis: questions asked in the order in which one cause hides another.

Each question is one function: Readings and Limits in; a Finding, or None for "no, ask the next". The first finding is
the bottleneck. A log line that names a cause goes with it, whatever the figures say. Generating models have one list of
questions (`decoder_tree.py`), encoders another (`encoder_tree.py`).
"""

from __future__ import annotations

import dataclasses

from trtdecode.doctor.decoder_tree import DECODER_QUESTIONS
from trtdecode.doctor.encoder_tree import ENCODER_QUESTIONS
from trtdecode.doctor.finding import FAULTS, Finding, Limits
from trtdecode.doctor.log_signs import found_signs
from trtdecode.doctor.readings import Readings


def diagnose(readings: Readings, limits: Limits | None = None) -> Finding:
    """Asks the questions in order."""
    chosen = limits or Limits()
    questions = ENCODER_QUESTIONS if readings.is_encoder else DECODER_QUESTIONS
    finding = next(found for question in questions if (found := question(readings, chosen)) is not None)
    past = [f"{readings.last(name):g} {text} since the load" for name, text in FAULTS.items() if readings.last(name)]
    signs = [
        f"{count} log lines say: {sign.meaning} ({line[:160]}). Next: {sign.next_step}"
        for sign, count, line in found_signs(readings.log_lines)
    ]
    return dataclasses.replace(finding, also=past + signs)
