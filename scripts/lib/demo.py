"""`scripts/demo`: installs what is missing, then hands over to demo_serve.py in `.venv`. Standard library only."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import environment
from progress import Progress, StepFailed

#: SmolLM2-135M-Instruct; Gemma 3 270M, which continues texts and comes under Google's terms.
MODELS = ("smollm2", "gemma3")
DEFAULT_PROMPT = "Explain in three sentences why the sky is blue."


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="A real tritonserver streams a real LLM on this machine, GPU or not."
    )
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="(default: %(default)s)")
    parser.add_argument("--accept-gemma-terms", action="store_true", help="with --model gemma3, which asks otherwise")
    parser.add_argument("--once", metavar="PROMPT", help="answer one prompt, print one JSON line last, and end")
    parser.add_argument("--prompt", default=DEFAULT_PROMPT, help="what to ask before serving (default: %(default)r)")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--http-port", type=int, default=8000, help="(default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=8001, help="(default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=8002, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.max_tokens < 1:
        parser.error(f"--max-tokens: got {options.max_tokens}; must be at least 1")
    for name in ("http_port", "grpc_port", "metrics_port"):
        if not 1 <= getattr(options, name) <= 65535:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(options, name)}; must be in 1..65535")
    return options


def main() -> int:
    options = parse_arguments()
    sys.path.insert(0, str(environment.ROOT / "backend"))  # these two modules need no more than this Python has
    from trtdecode.errors import ServerError
    from trtdecode.server.ports import Ports, check_ports

    try:
        # Before minutes of installing: a busy port is the user's to settle.
        check_ports(Ports(options.http_port, options.grpc_port, options.metrics_port), options.host)
        environment.ensure([], Progress(environment.LOG_FILE))
    except (StepFailed, ServerError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    # Caches of the server stay in the clone: a home folder may be missing or read-only.
    os.environ.setdefault("XDG_CACHE_HOME", str(environment.CACHE))
    program = Path(__file__).with_name("demo_serve.py")
    return os.execv(environment.VENV_PYTHON, [str(environment.VENV_PYTHON), str(program), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
