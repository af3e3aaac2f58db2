"""Rules in order, splits by user, replicas by prefix."""

from pathlib import Path

import pytest
from trtdecode.errors import ConfigError
from trtdecode.gateway.replicas import PREFIX_BLOCK, Replicas, prefix_digests
from trtdecode.gateway.routing import read_router
from trtdecode.gateway.triton import TritonConnection

RULES = """
[[rule]]
model = "assistant"
min_prompt_chars = 100
target = "long"

[[rule]]
model = "assistant"
callers = ["abc"]
target = "special"

[[split]]
model = "assistant"
targets = { a = 0.75, b = 0.25 }
"""


def test_the_first_rule_that_matches_decides(tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text(RULES)
    router = read_router(file)
    assert router.route("assistant", 100, "abc", "u") == ("long", "rule 1")
    assert router.route("assistant", 99, "abc", "u") == ("special", "rule 2")
    assert router.route("other", 1000, "abc", "u") == ("other", "")


def test_a_split_keeps_users_and_its_shares(tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text(RULES)
    router = read_router(file)
    targets = [router.route("assistant", 1, "", f"user {number}")[0] for number in range(4000)]
    assert targets == [router.route("assistant", 1, "", f"user {number}")[0] for number in range(4000)]
    assert abs(targets.count("b") / 4000 - 0.25) < 0.03  # four standard errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rules]]\n", "'rules' is not known"),
        ('[[rule]]\nmodel = "x"\n', "rule 1: .*target"),
        ('[[rule]]\nmodel = "x"\ntarget = "y"\nextra = 1\n', "rule 1: .*extra"),
        ('[[split]]\nmodel = "x"\ntargets = { a = 0.5 }\n', "split 1: .*add up to 1"),
        ("[[rule]\n", "not readable"),
    ],
)
def test_wrong_rules_name_file_and_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "routes.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"routes.toml: {message}"):
        read_router(file)


def replicas(affinity: bool) -> Replicas:
    connections = [object.__new__(TritonConnection) for _ in range(3)]  # never asked anything here
    return Replicas(connections, prefix_affinity=affinity)


def test_digests_chain_full_blocks_only() -> None:
    ids = list(range(3 * PREFIX_BLOCK + 5))
    digests = prefix_digests(ids)
    assert len(digests) == 3
    assert prefix_digests([*ids, 1])[:3] == digests
    changed = prefix_digests([7, *ids[1:]])
    assert not set(changed) & set(digests)
    assert prefix_digests(ids[: PREFIX_BLOCK - 1]) == []


def test_a_conversation_returns_to_the_replica_that_holds_its_blocks() -> None:
    group = replicas(affinity=True)
    history = list(range(100))
    first, why = group.choose(history)
    assert (first, why) == (0, "least-running")
    group.started(first)
    other, _ = group.choose([9] * 100)
    assert other == 1
    assert group.choose([*history, 5, 6, 7]) == (first, "prefix")


def test_a_busy_holder_is_left_for_the_idlest() -> None:
    group = replicas(affinity=True)
    history = list(range(100))
    group.choose(history)
    for _ in range(9):
        group.started(0)
    assert group.choose(history) == (1, "least-running")
    assert group.choose(history) == (1, "prefix")  # its blocks are there now


def test_without_affinity_the_least_running_answers() -> None:
    group = replicas(affinity=False)
    group.started(0)
    assert group.choose([1] * 100) == (1, "least-running")
