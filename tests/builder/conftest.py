"""Builder tests run tiny models: one torch thread is faster than several, and quiet progress bars keep output short."""

from __future__ import annotations

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()
