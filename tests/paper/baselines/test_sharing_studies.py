"""Several processes work on one study: started together, killed, one too many."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import archlearn as al
from archlearn_paper.baselines.bayesian_search import Search, Space

pytest.importorskip("optuna")
SPACE = Space(most={"a": 10_000}, fixed={})
OPEN = """
import sys, time
from pathlib import Path
from archlearn_paper.baselines.bayesian_search import Search, Space

search = Search("a", Space(most={"a": 10_000}, fixed={}), seed=0, file=Path(sys.argv[1]))
proposal = search.propose()
print(proposal.number, proposal.widths["a"], flush=True)
time.sleep(600 if sys.argv[2:] else 0)
"""


def start(file: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OPEN, str(file), *words]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_workers_started_together_all_get_a_training_of_their_own(tmp_path: Path) -> None:
    workers = [start(tmp_path / "study.db") for _ in range(4)]
    answers = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, answers
    proposals = [answer.split() for answer, _ in answers]
    assert sorted(int(number) for number, _ in proposals) == [0, 1, 2, 3]
    assert len({width for _, width in proposals}) == 4


def test_the_training_of_a_killed_worker_is_given_up_at_once(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    with start(file, "stay") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("0 ")
        search = Search("a", SPACE, seed=0, file=file)
        assert search.drop_abandoned() == 0
        os.kill(worker.pid, signal.SIGKILL)
    assert search.n_left(1) == 0
    assert search.drop_abandoned() == 1
    assert search.n_left(1) == 1


def test_a_proposal_is_one_too_many_where_others_were_first(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    first, second = (Search("a", SPACE, seed=0, file=file) for _ in range(2))
    proposals = [first.propose(), second.propose()]
    assert [first.has_enough_without(each, 1) for each in proposals] == [False, True]
    first.give_up(proposals[0])
    assert not second.has_enough_without(proposals[1], 1)


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a data base, but longer than a header " * 20)
    with pytest.raises(al.InputError, match=r"notes.txt cannot be used for a study: .*another"):
        Search("a", SPACE, seed=0, file=tmp_path / "notes.txt")
    with pytest.raises(al.InputError, match="cannot be used for a study"):
        Search("a", SPACE, seed=0, file=tmp_path / "notes.txt" / "study.db")
