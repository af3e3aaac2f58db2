"""The record of a promotion: JSON for machines, a page for people, both in the version's reports; and the history."""

from __future__ import annotations

import dataclasses
import html
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtdecode.manifest import MANIFEST_FILE, sha256_of
from trtdecode.promote.gate import Verdict

RECORD = "promotion.json"


def write_record(
    version_dir: Path,
    *,
    who: str,
    source: Path,
    model: str,
    number: int,
    verdicts: Sequence[Verdict],
    cut_over: dict[str, Any],
) -> Path:
    """Writes `reports/promotion.json` and `reports/promotion.html`; returns the JSON's path."""
    reports = version_dir / "reports"
    reports.mkdir(exist_ok=True)
    record = {
        "model": model,
        "version": number,
        "who": who,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": str(source),
        "manifest_sha256": sha256_of(version_dir / MANIFEST_FILE),
        "passed": all(verdict.passed for verdict in verdicts),
        "gates": [dataclasses.asdict(verdict) for verdict in verdicts],
        "cut_over": cut_over,
    }
    (reports / RECORD).write_text(json.dumps(record, indent=1, default=str) + "\n", "utf-8")
    (reports / "promotion.html").write_text(page(record), "utf-8")
    return reports / RECORD


def page(record: dict[str, Any]) -> str:
    """A self-contained page: each gate, its verdict, its evidence."""
    rows = "".join(
        f"<tr class={'good' if gate['passed'] else 'bad'}><td>{html.escape(gate['gate'])}</td>"
        f"<td>{'passed' if gate['passed'] else 'refused'}</td><td>{gate['seconds']:.1f} s</td>"
        f"<td>{html.escape(gate['evidence'])}</td></tr>"
        for gate in record["gates"]
    )
    title = html.escape(f"{record['model']} version {record['version']}")
    about = html.escape(f"{record['when']}, by {record['who']}, from {record['source']}")
    return _PAGE.format(title=title, about=about, digest=record["manifest_sha256"], rows=rows)


def history(model_dir: Path) -> list[dict[str, Any]]:
    """The records of all versions that have one, oldest first; withdrawn versions are marked."""
    found = [
        {**json.loads(path.read_text("utf-8")), "in_repository": path.parent.parent.name.isdecimal()}
        for path in model_dir.glob(f"*/reports/{RECORD}")
    ]
    withdrawn = model_dir.glob(f".*/reports/{RECORD}")
    found += [{**json.loads(path.read_text("utf-8")), "in_repository": False} for path in withdrawn]
    return sorted(found, key=lambda record: str(record["when"]))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem }}
td {{ padding: .3rem .8rem; border-bottom: 1px solid #ddd; vertical-align: top }}
.good td:nth-child(2) {{ color: #0a6b2d }} .bad td:nth-child(2) {{ color: #a3130f; font-weight: 600 }}
</style></head><body>
<h1>{title}</h1><p>{about}</p><p>Manifest <code>{digest}</code></p><table>{rows}</table>
</body></html>
"""
