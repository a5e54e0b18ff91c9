"""Pairs, splits and files of trajectories, and what is refused."""

import re
from dataclasses import replace
from math import inf, nan

import jaxtyping
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.data import storage as whole
from symbayes.dynamics.tables import load_trajectories, save_csv
from symbayes.dynamics.trajectories import Trajectories, simulate
from tests.damage import damaged


def counted(trajectories=3, times=4, m=2):
    return torch.arange(trajectories * times * m, dtype=torch.float64).view(trajectories, times, m)


def written(folder, text, name="motion.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_pairs_are_consecutive_states_of_one_trajectory():
    inputs, targets = Trajectories(counted(2, 3), 0.1).pairs()
    assert_close(inputs, torch.tensor([[0, 1], [2, 3], [6, 7], [8, 9]], dtype=torch.float64))
    assert_close(targets, torch.tensor([[2, 3], [4, 5], [8, 9], [10, 11]], dtype=torch.float64))


def test_pairs_have_noisy_targets_where_there_are():
    found = Trajectories(counted(2, 3), 0.1, targets=-counted(2, 2))
    assert_close(found.pairs()[1], -counted(2, 2).view(4, 2))


def test_trajectories_know_their_size_and_names():
    found = Trajectories(counted(3, 4, 6), 0.1)
    assert (len(found), found.degrees, found.names) == (3, 3, ("q1", "q2", "q3", "p1", "p2", "p3"))


def test_single_precision_is_one_call():
    found = Trajectories(counted(), 0.1, targets=counted()[:, 1:]).float()
    assert found.states.dtype == found.targets.dtype == torch.float32
    assert Trajectories(counted(), 0.1).float().targets is None


def test_the_last_trajectories_are_held_out():
    whole = Trajectories(counted(10), 0.1, ("a", "b"), targets=-counted(10)[:, 1:])
    train, test = whole.split(0.3)
    assert (len(train), len(test)) == (7, 3)
    assert_close(torch.cat([train.states, test.states]), whole.states)
    assert_close(torch.cat([train.targets, test.targets]), whole.targets)
    assert (test.names, test.step) == (("a", "b"), 0.1)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_single_trajectory_is_split_in_time(noisy):
    states = counted(1, 10)
    whole = Trajectories(states, 0.1, targets=-states[:, 1:] if noisy else None)
    train, test = whole.split(0.4)
    assert_close(train.states, states[:, :6])
    assert_close(test.states, states[:, 6:])
    inputs, targets = whole.pairs()
    for part, pairs in ((train, slice(0, 5)), (test, slice(6, 9))):
        assert_close(part.pairs()[0], inputs[pairs])
        assert_close(part.pairs()[1], targets[pairs])


def test_splits_that_leave_a_part_empty_are_refused():
    with pytest.raises(
        ValueError, match=r"1 or more of the 2 trajectories; with share=0.2 one has not. Give a share between 0.5 and 0.5"
    ):
        Trajectories(counted(2), 0.1).split()
    with pytest.raises(ValueError, match=r"with share=0.99 one has not. Give a share between 0.1 and 0.9"):
        Trajectories(counted(10), 0.1).split(0.99)
    for share in (0.0, 1.0, -0.3, 1.2, nan):
        with pytest.raises(ValueError, match="one has not"):
            Trajectories(counted(10), 0.1).split(share)
    with pytest.raises(ValueError, match=r"2 or more of the 3 states; with share=0.5 one has not. Record more"):
        Trajectories(counted(1, 3), 0.1).split(0.5)


@pytest.mark.parametrize(
    ("states", "others", "message"),
    [
        (counted()[0], {}, r"must be \[trajectories, times, coordinates\] of one trajectory or more, got \(4, 2\)"),
        (counted()[:0], {}, r"one trajectory or more, got \(0, 4, 2\)"),
        (counted()[:, :1], {}, "must have 2 states or more, got 1"),
        (counted(m=2)[..., :0], {}, "must have a coordinate or more; got none"),
        (counted(), {"when": counted()[..., 0][:2]}, r"when must be \(3, 4\), a time for every state; got \(2, 4\)"),
        (counted(), {"when": -counted()[..., 0]}, "when must be finite, and grow from state to state"),
        (counted().long(), {}, r"states must be floating-point numbers, got torch.int64. Convert them: states.double\(\)"),
        (counted().log(), {}, r"states must be finite; the number at \[0, 0, 0\]"),
        (counted(), {"step": 0.0}, "step must be above 0 and finite, got 0"),
        (counted(), {"step": inf}, "step must be above 0 and finite, got inf"),
        (counted(), {"names": ("q",)}, "names must be 2 different ones, as there are coordinates; got q"),
        (counted(), {"names": ("q", "q")}, "names must be 2 different ones, as there are coordinates; got q, q"),
        (counted(), {"targets": counted()}, r"targets must be \(3, 3, 2\), one for every state but the last.*got \(3, 4, 2\)"),
        (counted(), {"targets": counted(times=3) / 0}, "targets must be finite"),
    ],
)
def test_states_that_are_no_trajectories_are_refused(states, others, message, monkeypatch):
    """As for users, for whom nothing checks shapes before."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        Trajectories(states, **{"step": 0.1, **others})


@pytest.mark.parametrize("name", ["oscillator", "3-body-3d", "pendulum"])
def test_a_table_comes_back_as_it_was_saved(name, tmp_path):
    saved = simulate(name, trajectories=3, steps=7, step=0.3)
    save_csv(saved, tmp_path / "motion.csv")
    found = load_trajectories(tmp_path / "motion.csv")
    assert_close(found.states, saved.states, atol=0.0, rtol=0.0)
    assert found.names == saved.names
    assert found.step == pytest.approx(0.3, rel=1e-12)
    assert load_trajectories(str(tmp_path / "motion.csv"), step=0.3).step == 0.3


def test_targets_have_no_place_in_a_table(tmp_path):
    noisy = simulate("oscillator", trajectories=2, steps=2, noise=0.1)
    with pytest.raises(ValueError, match="Only states can be saved as a table"):
        save_csv(noisy, tmp_path / "motion.csv")
    save_csv(replace(noisy, targets=None), tmp_path / "motion.csv")


@pytest.mark.parametrize("name", ["time", "trajectory", "1.5", " "])
def test_names_that_a_table_cannot_hold_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="line 1 must be a header of different names, got trajectory, time, q"):
        save_csv(Trajectories(counted(), 0.1, ("q", name)), tmp_path / "motion.csv")
    assert not (tmp_path / "motion.csv").exists()


def test_a_table_may_be_of_one_trajectory_without_time(tmp_path):
    found = load_trajectories(written(tmp_path, "\ufeffq, p\n1,2\n3,4\n\n5,6\n"), step=0.5)
    assert_close(found.states, torch.tensor([[[1, 2], [3, 4], [5, 6]]], dtype=torch.float64))
    assert (found.step, found.names) == (0.5, ("q", "p"))


def test_trajectories_of_a_table_may_be_in_turns_and_columns_in_any_order(tmp_path):
    text = "q,time,p,trajectory\n1,0,2,b\n5,7,6,a\n3,0.5,4,b\n7,7.5,8,a\n"
    found = load_trajectories(written(tmp_path, text))
    assert_close(found.states, torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], dtype=torch.float64))
    assert (found.step, found.names) == (0.5, ("q", "p"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "motion.csv must hold trajectories; it is empty"),
        ("\n\n", "line 1 must name coordinates, separated by commas"),
        ("q,p\n", "must have a row for every state below its header; it has none"),
        ("1,2\n3,4\n", "line 1 must be a header of different names, got 1, 2"),
        ("q,q\n3,4\n", "line 1 must be a header of different names, got q, q"),
        ("q,\n3,4\n", "line 1 must be a header of different names, got q, "),
        ("time,run\n0,1\n1,2\n", "line 1 must name coordinates, separated by commas; got time, run"),
        ("q [m],q (cm)\n1,2\n", r"header of different names, got q \[m\], q \(cm\)"),
        ("q|p\n1|2\n", "line 2 must have a finite number for q|p"),
        ("q,p\n1,2\n3\n", "line 3 must have 2 entries, as the header has; got 1"),
        ("q,p\n1,2\n\n3,4,5\n", "line 4 must have 2 entries, as the header has; got 3"),
        ("q,p\n1,2\n3,four\n", "line 3 must have a finite number for p, got 'four'"),
        ("q,p\n1,2\n,4\n", "line 3 must have a finite number for q, got ''"),
        ("q,p\n1,nan\n3,4\n", "line 2 must have a finite number for p, got 'nan'"),
        ("time,q,p\n0,1,2\nnoon,3,4\n", "line 3 must have a finite number for time, got 'noon'"),
        ("q,p\n1,2\n", "motion.csv: A trajectory must have 2 states or more, got 1"),
        ("time,q,p\n0,1,2\n", "motion.csv: A trajectory must have 2 states or more, got 1"),
        ("q,p\n1,2\n,\n3,4\n", "line 3 must have a finite number for q, got ''"),
        ("trajectory,q,p\na,1,2\na,1,2\nb,1,2\n", "equally many rows; 'a' has 2, 'b' has 1. Cut them"),
        (
            "time,q,p\n0,1,2\n1,1,2\n1,1,2\n4,1,2\n",
            "line 4: time must grow from row to row of a trajectory; this row is 0 after",
        ),
        ("time,q,p\n3,1,2\n2,1,2\n1,1,2\n", "line 3: time must grow from row to row of a trajectory; this row is -1 after"),
        ('q,p\n1,2\n"3"4,5\n', "line 3 must be text separated by commas"),
    ],
)
def test_broken_tables_are_refused_with_the_line(text, message, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as refused:
        load_trajectories(path, step=0.1)
    assert str(path) in str(refused.value)


def test_a_table_as_users_have_them(tmp_path):
    """Units in the header, text and numbers beside the coordinates, these interleaved, times uneven, semicolons."""
    path = written(
        tmp_path,
        "Run no.;t [s];note;x [m];px / kg m/s;y (m);py;temp [°C]\n"
        "a;0;ok;1;2;3;4;20\na;0.5;;5;6;7;8;20\na;2;late;9;10;11;12;21\n"
        "b;1;;1;2;3;4;20\nb;1.5;;5;6;7;8;20\nb;3;;9;10;11;12;21\n",
    )
    found = load_trajectories(path, columns=("x", "y", "px", "py"), trajectory="Run no.")
    assert found.names == ("x", "y", "px", "py")
    assert found.states[0].tolist() == [[1, 3, 2, 4], [5, 7, 6, 8], [9, 11, 10, 12]]
    assert found.times.tolist() == [[0, 0.5, 2], [1, 1.5, 3]]
    assert found.step == 1
    _, test = found.split(0.5)
    assert test.times.tolist() == [[1, 1.5, 3]]
    save_csv(found, tmp_path / "again.csv")
    assert load_trajectories(tmp_path / "again.csv").times.tolist() == found.times.tolist()
    with pytest.raises(ValueError, match=r"must have a column z; its columns are Run no\., t \[s\]"):
        load_trajectories(path, columns=("x", "z"))
    with pytest.raises(ValueError, match=r"line 2 must have a finite number for note, got 'ok'\. Name the coordinates"):
        load_trajectories(path, trajectory="Run no.")
    with pytest.raises(ValueError, match="each once"):
        load_trajectories(path, columns=("x", "x [m]"), trajectory="Run no.")


def test_a_table_may_have_capitals_and_commas_for_points(tmp_path):
    text = "Run;Time [s];T [K];q\n" + "".join(f"{run};{k},5;{300 + k};-{k},25e1\n" for run in range(2) for k in range(3))
    found = load_trajectories(written(tmp_path, text))
    assert found.names == ("T", "q")
    assert found.step == 1
    assert found.states[1].tolist() == [[300, -2.5], [301, -12.5], [302, -22.5]]
    with pytest.raises(ValueError, match="line 2 must have a finite number for q, got '1_000'"):
        load_trajectories(written(tmp_path, "time,q\n0,1_000\n"))


def test_an_array_has_no_columns(tmp_path):
    np.save(tmp_path / "motion.npy", np.zeros((2, 3, 3)))
    assert load_trajectories(tmp_path / "motion.npy", step=1.0).names == ("x1", "x2", "x3")
    with pytest.raises(ValueError, match="is an array, which has no names"):
        load_trajectories(tmp_path / "motion.npy", step=1.0, columns=("x",))


def test_only_pairs_of_positions_and_momenta_have_degrees_of_freedom():
    with pytest.raises(ValueError, match="even count; got 3 coordinates: x1, x2, x3"):
        _ = Trajectories(counted(m=3), 0.1).degrees


def test_a_table_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "motion.csv"
    path.write_bytes(b"q,p\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match=r"motion.csv must be text in UTF-8"):
        load_trajectories(path)


def test_a_step_must_be_given_and_agree_with_the_table(tmp_path):
    timed = written(tmp_path, "time,q,p\n0,1,2\n0.5,3,4\n")
    with pytest.raises(ValueError, match=r"step must be that of the column time in .*, 0.5, or left out; got 0.4"):
        load_trajectories(timed, step=0.4)
    with pytest.raises(ValueError, match=r"step must be that of the column time"):
        load_trajectories(timed, step=0.0)
    plain = written(tmp_path, "q,p\n1,2\n3,4\n")
    with pytest.raises(ValueError, match=r"does not say how much time is between its states: give step="):
        load_trajectories(plain)
    for step in (0.0, -1.0, nan):
        with pytest.raises(ValueError, match=re.escape(f"{plain}: step must be above 0")):
            load_trajectories(plain, step=step)


@pytest.mark.parametrize("precision", [np.float32, np.float64, ">f8", np.int64])
def test_arrays_are_read_in_their_precision(precision, tmp_path):
    states = counted().numpy().astype(precision)
    np.save(tmp_path / "many.npy", states)
    np.save(tmp_path / "one.npy", states[1])
    many, one = (load_trajectories(tmp_path / name, step=0.2) for name in ("many.npy", "one.npy"))
    kept = torch.float32 if precision is np.float32 else torch.float64
    assert_close(many.states, counted().to(kept))
    assert_close(one.states, counted()[1:2].to(kept))
    assert (many.step, many.names) == (0.2, ("q", "p"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4), r"must hold real numbers .* got float64 of shape \(4,\)"),
        (np.zeros((2, 2), dtype=complex), "must hold real numbers .* got complex128"),
        (np.array([[1, "a"]], dtype=object), "must hold real numbers .* got object"),
        (np.zeros((2, 0)), r"motion.npy: A state must have a coordinate or more"),
        (np.full((2, 2), nan), "motion.npy: states must be finite"),
    ],
)
def test_arrays_that_are_no_trajectories_are_refused(array, message, tmp_path):
    np.save(tmp_path / "motion.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        load_trajectories(tmp_path / "motion.npy", step=0.1)


def test_broken_and_missing_files_are_refused(tmp_path):
    np.save(tmp_path / "whole.npy", counted().numpy())
    for name, content in (("cut.npy", (tmp_path / "whole.npy").read_bytes()[:-8]), ("text.npy", b"q,p\n1,2\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} must be a whole array of numbers in the format of numpy.save"):
            load_trajectories(tmp_path / name, step=0.1)
    (tmp_path / "none.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none.npy must hold trajectories; it is empty"):
        load_trajectories(tmp_path / "none.npy", step=0.1)
    with pytest.raises(ValueError, match=r"does not say how much time is between its states"):
        load_trajectories(tmp_path / "whole.npy")
    with pytest.raises(FileNotFoundError, match=r"missing.csv must be a file of trajectories; there is none"):
        load_trajectories(tmp_path / "missing.csv")
    with pytest.raises(FileNotFoundError, match="must be a file of trajectories"):
        load_trajectories(tmp_path)
    with pytest.raises(ValueError, match=r"notes.txt must be an array \(.npy\) or a table \(.csv\)"):
        load_trajectories(written(tmp_path, "q,p\n", "notes.txt"))


def array_file(head, content=b"", version=1):
    """A file as numpy writes it, of a head as it is given."""
    length = len(head).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + head.encode() + content


HEAD = "{'descr': %s, 'fortran_order': False, 'shape': %s}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            array_file(HEAD % ("'<f8'", "(1000000, 1000000, 8)"), bytes(64)),
            "should have 64000000000000 bytes behind its head, got 64",
        ),
        (array_file(HEAD % ("'<f8'", "(99999999999999999999, 2)"), bytes(64)), "bytes behind its head, got 64"),
        (array_file(HEAD % ("'<f8'", "(-4, 2)"), bytes(64)), r"must hold real numbers .* shape \(-4, 2\)"),
        (array_file(HEAD % ("'<f8'", "(4, 2)"))[:-20], "its head cannot be read"),
        (array_file(HEAD % ("'<f8'", "(4, 2"), bytes(64)), "its head cannot be read"),
        (array_file(HEAD % ("'<f8'", "(" * 3000), bytes(64)), "its head cannot be read"),
        (array_file(HEAD % ("'<f8'", "(4, 2)"), bytes(64), 2)[:10] + b"\xff\xff\xff\xff", "its head cannot be read"),
        (array_file(HEAD % ("'V0'", "(4, 99999999)")), "must hold real numbers .* got"),
        (array_file(HEAD % ("[('q', '<f8')]", "(4, 2)"), bytes(64)), "must hold real numbers .* got"),
    ],
)
def test_heads_that_are_damaged_or_claim_too_much_are_refused(content, message, tmp_path):
    (tmp_path / "motion.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_trajectories(tmp_path / "motion.npy", step=0.1)


def test_damaged_files_are_read_or_refused(tmp_path):
    states = counted()
    np.save(tmp_path / "motion.npy", states.numpy())
    np.save(tmp_path / "long.npy", states.numpy().astype(np.longdouble))
    save_csv(Trajectories(states, 0.5), tmp_path / "motion.csv")
    for path in sorted(tmp_path.iterdir()):
        for changed in damaged(path.read_bytes(), 150):
            path.write_bytes(changed)
            try:
                found = load_trajectories(path, None if path.suffix == ".csv" else 0.1)
            except ValueError:
                continue
            assert found.states.isfinite().all()


@pytest.mark.parametrize("times", [(-1e308, 1e308), (-1e308, 0, 1e308), (0, 1e308, -1e308)])
def test_times_too_far_apart_for_a_number_are_refused(times, tmp_path):
    path = written(tmp_path, "time,q,p\n" + "".join(f"{time},1,2\n" for time in times))
    with pytest.raises(ValueError, match=r"time must grow|times must be even|step must be above 0 and finite"):
        load_trajectories(path)


def test_a_table_that_cannot_be_written_leaves_the_one_there_was(tmp_path, monkeypatch):
    path = tmp_path / "motion.csv"
    path.write_text("before")
    monkeypatch.setattr(whole.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_csv(Trajectories(counted(), 0.5), path)
    assert [file.name for file in tmp_path.iterdir()] == ["motion.csv"]
    assert path.read_text() == "before"
