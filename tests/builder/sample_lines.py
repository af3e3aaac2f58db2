"""Thousands of lines that tokenizers disagree about: many scripts, emoji, code, numbers, odd spaces, added tokens."""

from __future__ import annotations

import random

_PIECES = (
    *("The quick brown fox", "jumps over", "it's", "I'LL", "we've", "don't", "naïve café", "Straße", "ﬁne ligature"),
    *("Быстрая лиса", "Ωμέγα", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好\uff0c世界", "カタカナ"),
    *("こんにちは", "안녕하세요", "Xin chào thế giới", "👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "🙂", "🇫🇷"),
    *("e\u0301", "a\u0308", "\u200b", "\ufeff", "\U0001d518\U0001d52b\U0001d526"),
    *(
        "def f(x: int) -> str:",
        "    return x",
        "\tif (a && b) {",
        "};",
        "x += 1;",
        "<div class='a'>",
        "SELECT * FROM t;",
    ),
    *("#include <stdio.h>", "λx.x", "https://example.com/a?b=c&d=1", "user@example.com", "C:\\temp\\x"),
    *("0", "7", "42", "2024", "3.14159", "1,000,000", "0x1F", "1e-5", "٣٤٥", "½", "²", "IV"),
    *("...", "!!!", "?!", "—", "\u2013", "“quoted”", "(paren)", "[x]", "$100", "100%", "&amp;", "***", "___", "---"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "antidisestablishmentarianism", "ALLCAPS"),
    *("camelCase", "snake_case", "ThisIsPascal", "aaaaaaaaaaaaaaaa", "hahaha", "zzz"),
)
_GAPS = (" ", " ", " ", " ", "", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n", "\u00a0", "\u3000", ", ", ". ", "-")


def sample_lines(count: int) -> list[str]:
    """`count` lines, always the same."""
    chooser = random.Random(2024)
    lines = []
    for _ in range(count):
        parts = [
            part for _ in range(chooser.randint(0, 9)) for part in (chooser.choice(_PIECES), chooser.choice(_GAPS))
        ]
        lines.append("".join(parts))
    return lines
