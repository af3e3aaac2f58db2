"""What a second replica costs, and what the KV-aware choice between the two saves.

The saving is that of one turn of a chat: at the replica that holds the blocks of the turns before, against the same
turn at the other replica. How often plain balancing meets the right replica by luck is counted with several clients.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gateway_features import SAVING_WARM_UP, WORDS, Feature, Pairs, measure_pairs
from gateway_process import IDLE, MEASURED, CompletionClient, GatewayProcess, TimedAnswer, gateway_process
from trtdecode.server.launch import TritonServer

REPLICA = "x-trtdecode-replica"
NUM_CLIENTS, NUM_CHATS, NUM_TURNS = 3, 10, 4
OPENING_WORDS = 200  # some 400 tokens


def measure_replicas(
    repository: Path, servers: Sequence[TritonServer], plain: GatewayProcess, *, pairs: int, saving_pairs: int
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Figures by row, of gateways in front of both servers; and the share of a chat's turns that came back to the
    replica of the turn before, by kind of choice. `plain` has no feature and is in front of the first server alone."""

    def ask(client: CompletionClient, number: int) -> TimedAnswer:
        return client.ask(f"{number} {opening(0)}")  # longer than a hashed piece, as a chat is

    least = Feature("second replica, least running", (), ask, REPLICA, "0 least-running")
    aware = Feature("KV-aware instead of least running", ("--prefix-affinity",), ask, REPLICA, "0 least-running")
    with (
        gateway_process(repository, servers) as by_load,
        gateway_process(repository, servers, aware.options) as by_prefix,
        gateway_process(repository, servers[1:]) as other,
    ):
        rows = {
            least.name: measure_pairs(least, plain, by_load, pairs).figures(),
            aware.name: measure_pairs(aware, by_load, by_prefix, pairs).figures(),
            "KV-aware, a later turn of a chat": _later_turns(by_prefix, (plain, other), saving_pairs).figures(),
        }
        shares = {"least running": _returning(by_load), "KV-aware": _returning(by_prefix)}
    return rows, shares


def opening(seed: int) -> str:
    """A chat's first prompt, which no other chat begins with."""
    return f"{seed} " + " ".join(np.random.default_rng(seed).choice(WORDS, OPENING_WORDS).tolist())


def _later_turns(by_prefix: GatewayProcess, alone: Sequence[GatewayProcess], count: int) -> Pairs:
    """Second turns: where the KV-aware choice sends them, and at the replica that does not hold the first."""
    aware = CompletionClient(by_prefix)
    replicas = [CompletionClient(gateway) for gateway in alone]
    found = Pairs([], [])
    for number in range(-SAVING_WARM_UP, count):
        first = opening(1000 + number)
        answer = aware.ask(first, model=MEASURED)
        holder = int(answer.headers[REPLICA].split()[0])
        second = f"{first}{answer.text} And then what?"
        asks = [(replicas[1 - holder], found.without), (aware, found.having)]
        for client, times in asks if number % 2 else asks[::-1]:
            answer = client.ask(second, model=MEASURED)
            if client is aware and answer.headers[REPLICA] != f"{holder} prefix":
                raise RuntimeError(f"{REPLICA} is {answer.headers[REPLICA]!r}; replica {holder} holds the chat")
            if number >= 0:
                times.append(answer.seconds)
    for client in (aware, *replicas):
        client.close()
    return found


def _returning(gateway: GatewayProcess) -> float:
    """Share of later turns that met the replica of the turn before; several clients, each with chats in turns."""
    returned: list[bool] = []
    errors: list[Exception] = []

    def run(number: int) -> None:
        client = CompletionClient(gateway)
        try:
            texts = [opening(NUM_CHATS * number + chat) for chat in range(NUM_CHATS)]
            replicas = [""] * NUM_CHATS
            for turn in range(NUM_TURNS):
                for chat in range(NUM_CHATS):
                    answer = client.ask(texts[chat], model=IDLE, max_tokens=4 + (number + chat) % 5)
                    replica = answer.headers[REPLICA].split()[0]
                    if turn:
                        returned.append(replica == replicas[chat])
                    replicas[chat] = replica
                    texts[chat] += answer.text
        except Exception as error:
            errors.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return statistics.mean(returned)
