"""Tiny random BERT classifiers with a word tokenizer, as Hugging Face folders, and what transformers makes of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from builder.tiny_models import randomize

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "what",
    "is",
    "a",
    "tree",
    "##s",
    "b",
    "-",
    "fish",
    "grow",
    "swim",
    "?",
    ".",
)
#: Sizes that no two dimensions share, so that a misplaced tensor cannot fit by accident.
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
}


def word_tokenizer() -> dict[str, Any]:
    """BERT's tokenizer.json over WORDS."""

    def token(content: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": content, "type_id": type_id}}

    def text(name: str, type_id: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    cls, sep = WORDS.index("[CLS]"), WORDS.index("[SEP]")
    first = [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": word, **flags} for index, word in enumerate(WORDS[:4])],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": [*first, text("B", 1), token("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [cls], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [sep], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: index for index, word in enumerate(WORDS)},
        },
    }


def write_classifier(folder: Path, **config: Any) -> Any:
    """Saves a random BertForSequenceClassification with the tokenizer and returns it; `config` as BertConfig's."""
    model = transformers.AutoModelForSequenceClassification.from_config(
        transformers.BertConfig(**SIZES, **config), dtype=torch.float32, attn_implementation="eager"
    )
    randomize(model)
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(word_tokenizer()))
    return model


def raw_scores(model: Any, folder: Path, text: str, pair: str | None = None) -> np.ndarray:
    """f32 [labels] as transformers computes them."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    with torch.inference_mode():
        scores: np.ndarray = model(**tokenizer(text, pair, return_tensors="pt")).logits[0].numpy()
    return scores


def sentence_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """f32 [k, hidden], one text at a time: what sentence-transformers does for MiniLM (the last hidden states, their
    mean over the tokens, length 1), without depending on it. Texts are cut at 256 tokens, as its files say."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    with torch.inference_mode():
        for text in texts:
            states = model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state[0]
            vectors.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.stack(vectors)
