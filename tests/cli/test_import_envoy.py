"""`limen rules import-envoy`: what a user types, sees and gets as exit code."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from limen.cli import main
from limen.rules import load, parse_text
from tests.cli.acts import Ran, Run

EDGE = """\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: remote_address
    value: 203.0.113.5
    rate_limit: {unit: second, requests_per_unit: 0}
"""
MONGO = """\
domain: mongo
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
"""
BAD = """\
domain: bad
descriptors:
  - key: a
    ratelimit: {}
  - value: b
"""
REPORT = "edge.yaml:7: descriptors[1].rate_limit.requests_per_unit: imported as mode: block\n"


@pytest.fixture
def limen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run the command in this process, in a folder of its own that holds two files."""
    monkeypatch.chdir(tmp_path)
    write("edge.yaml", EDGE)
    write("mongo.yml", MONGO)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "argv", ["limen", "rules", "import-envoy", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        assert code is None or isinstance(code, int)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ran(code or 0, printed.out, printed.err)

    return run


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def names(document: str) -> list[str]:
    return [rule.name for rule in parse_text(document).rules]


def test_a_file_is_written_as_rules_to_stdout_and_the_report_to_stderr(limen: Run) -> None:
    ran = limen("edge.yaml")
    assert ran.exit_code == 0
    assert names(ran.out) == ["edge.remote_address", "edge.remote_address_203.0.113.5"]
    assert ran.err == f"{REPORT}limen: 2 rules from 1 file, 1 note\n"


def test_a_folder_is_read_with_all_it_holds_in_order(limen: Run) -> None:
    write("deeper/other.yaml", MONGO.replace("mongo", "deeper"))
    ran = limen(".")
    assert ran.exit_code == 0
    assert [name.partition(".")[0] for name in names(ran.out)] == [
        "deeper",
        "edge",
        "edge",
        "mongo",
    ]
    assert ran.err.endswith("limen: 4 rules from 3 files, 1 note\n")


def test_what_kubernetes_keeps_beside_the_files_is_left_alone(limen: Run) -> None:
    write("config/..2026_01_01/edge.yaml", EDGE)
    write("config/.hidden.yaml", BAD)
    write("config/readme.txt", "not a configuration")
    Path("config/..data").symlink_to("..2026_01_01")
    Path("config/edge.yaml").symlink_to("..data/edge.yaml")
    assert limen("config").err.endswith("limen: 2 rules from 1 file, 1 note\n")


def test_the_document_goes_where_it_is_told_to(limen: Run) -> None:
    ran = limen("edge.yaml", "mongo.yml", "--output", "rules.out")
    assert (ran.exit_code, ran.out) == (0, "")
    assert ran.err == f"{REPORT}limen: 3 rules from 2 files, 1 note\n"
    assert len(load("rules.out").rules) == 3


def test_a_file_that_is_named_twice_is_read_once(limen: Run) -> None:
    assert limen("edge.yaml", "./edge.yaml", ".").err.endswith("3 rules from 2 files, 1 note\n")


def test_stdin_is_a_file(limen: Run) -> None:
    ran = limen("-", stdin=MONGO)
    assert names(ran.out) == ["mongo.database_users"]
    assert ran.err == "limen: 1 rule from 1 file\n"


def test_with_one_bad_file_nothing_is_written(limen: Run) -> None:
    write("config/bad.yaml", BAD)
    write("config/worse.yaml", "domain: ]\n")
    write("rules.out", "as it was")
    ran = limen("edge.yaml", "config", "--output", "rules.out")
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "config/bad.yaml:4: descriptors[0].ratelimit: unknown field 'ratelimit' "
        "(did you mean 'rate_limit'?)",
        "config/bad.yaml:5: descriptors[1].key: expected the key of an entry, got nothing",
        "config/worse.yaml:1: this is not YAML: did not find expected node content",
        "limen: nothing was written: 3 errors",
    ]
    assert Path("rules.out").read_text() == "as it was"


def test_another_algorithm_counts_all_the_limits(limen: Run) -> None:
    ran = limen("mongo.yml", "--algorithm", "sliding_counter")
    assert parse_text(ran.out).rules[0].allowances.own.limits[0].algorithm == "sliding_counter"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("edge.yaml", "--algorithm", "token-bucket"), "did you mean 'token_bucket'?"),
        (("edge.yaml", "--algorithm", "none"), "there are: fixed_window, sliding_counter"),
        (("nothing.yaml",), "cannot read nothing.yaml: No such file or directory"),
        (("empty",), "there is no file in empty that ends in .yaml or .yml"),
        (("edge.yaml", "--output", "no/such/folder"), "cannot write no/such/folder"),
        ((), "see limen rules import-envoy --help"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(
    limen: Run, arguments: tuple[str, ...], message: str
) -> None:
    Path("empty").mkdir()
    ran = limen(*arguments)
    assert ran.exit_code == 2
    assert ran.out == ""
    assert message in ran.err.splitlines()[-1]


def test_the_help_says_what_to_type(limen: Run) -> None:
    ran = limen("--help")
    assert ran.exit_code == 0
    assert "limen rules import-envoy config/ --output rules.yaml" in ran.out


def test_a_file_that_is_there_is_replaced_by_force_only(limen: Run) -> None:
    write("rules.out", "as it was")
    ran = limen("edge.yaml", "--output", "rules.out")
    assert ran.exit_code == 2
    assert ran.err.endswith("limen: rules.out is there already; add --force to replace it\n")
    assert Path("rules.out").read_text() == "as it was"
    assert limen("edge.yaml", "--output", "rules.out", "--force").exit_code == 0
    assert len(load("rules.out").rules) == 2
