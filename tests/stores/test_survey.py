"""What is wrong with the files of a root, all of it at once."""

import os
from pathlib import Path

import pytest

from agentcoord.stores.local import LocalStore
from agentcoord.stores.survey import Place, exposed
from tests.stores.layout import lay

HOUR_AGO, LONG_AGO = 1_000_000.0, 900_000.0


def test_every_fault_is_seen_where_a_listing_sees_one(root: Path, local: LocalStore) -> None:
    lay(root, "claims/o/r/1.json")
    lay(root, "claims/.github/r/1.json")
    lay(root, "events/.hidden/1.json")
    (root / "claims/.#link").symlink_to("o")  # hidden, so nobody's record
    lay(root, "claims/o/r/.hidden/1.json")
    (root / "claims/o/link").symlink_to("r")
    (root / "claims/o/r/2.json").mkdir()
    os.mkfifo(root / "claims/o/r/3.json")
    lay(root, "heartbeats")
    (root / "batches").symlink_to("claims")
    seen = local.survey(before=HOUR_AGO)
    assert seen.names == ("claims/.github/r/1.json", "claims/o/r/1.json")
    assert [(str(fault), fault.finding) for fault in seen.misplaced] == [
        ("state layout invalid: heartbeats is not a directory", "layout.kind"),
        ("state layout invalid: batches is a symlink", "layout.symlink"),
    ]
    assert sorted((str(fault), fault.mend) for fault in seen.faults) == [
        ("state layout invalid: claims/o/link is a symlink", None),
        ("state layout invalid: claims/o/r/2.json is not a regular file", None),
        (
            "state layout invalid: claims/o/r/3.json is not a regular file",
            f"mv -n {root}/claims/o/r/3.json {root}/claims/o/r/3.json.aside",
        ),
    ]


@pytest.mark.parametrize(
    ("name", "written", "left"),
    [
        (".7.json.tmp-12-0a1b2c3d4e5f", LONG_AGO, True),
        (".7.json.tmp-12-0a1b2c3d4e5f", HOUR_AGO, False),
        (".7.json.tmp-x-0a", LONG_AGO, False),
        (".7.json.tmp-12-zz", LONG_AGO, False),
        (".tmp-12-0a", LONG_AGO, False),
        ("7.json.tmp-12-0a", LONG_AGO, False),
        (".hidden.json", LONG_AGO, False),
    ],
)
def test_an_old_temporary_file_lost_its_writer(
    root: Path, local: LocalStore, name: str, written: float, left: bool
) -> None:
    place = lay(root, f"claims/o/r/{name}")
    os.utime(place, (written, written))
    assert local.survey(before=HOUR_AGO).leftovers == ((f"claims/o/r/{name}",) if left else ())


def test_a_root_that_is_not_there_has_nothing_wrong_below_it(root: Path, local: LocalStore) -> None:
    seen = local.survey(before=HOUR_AGO)
    assert (seen.names, seen.misplaced, seen.faults, seen.leftovers, seen.open_root) == ((), (), (), (), None)


@pytest.mark.parametrize(
    ("mode", "above", "found"),
    [
        (0o755, 0o755, (False, 0)),
        (0o770, 0o755, (True, 0)),
        (0o707, 0o755, (True, 0)),
        (0o1777, 0o755, (True, 0)),  # whoever may not rename may still add records
        (0o755, 0o775, (False, 1)),
        (0o755, 0o1777, (False, 0)),
    ],
)
def test_others_may_not_change_the_root_nor_what_is_above_it(
    tmp_path: Path, mode: int, above: int, found: tuple[bool, int]
) -> None:
    root = tmp_path / "above" / "root"
    root.mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    root.chmod(mode)
    root.parent.chmod(above)
    for named in (root, tmp_path / "link"):
        opened = [place.path for place in exposed(str(named), os.geteuid())[0]]
        assert (str(root) in opened) == found[0]
        assert [place for place in opened if place.startswith(f"{tmp_path}/above") and place != str(root)] == (
            [str(root.parent)] * found[1]
        )


def test_what_lies_above_is_said_with_whether_it_may_be_closed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for mode, closable in ((0o777, True), (0o2777, False), (0o1777, False)):
        root.chmod(mode)
        assert Place(str(root), closable) in exposed(str(root), os.geteuid())[0]
        assert Place(str(root), closable=False) in exposed(str(root), os.geteuid() + 1)[0]


def test_what_is_another_users_is_told(tmp_path: Path) -> None:
    def foreign(uid: int) -> list[str]:
        return [place.path for place in exposed(str(tmp_path), uid)[1] if place.path == str(tmp_path)]

    assert foreign(os.geteuid()) == []
    assert foreign(os.geteuid() + 1) == ([] if os.geteuid() == 0 else [str(tmp_path)])


def test_a_survey_of_what_is_no_root_is_empty(tmp_path: Path) -> None:
    for place in (tmp_path / ("x" * 300), tmp_path / "file"):
        if len(place.name) < 255:
            place.touch()
        assert LocalStore(place).survey(before=HOUR_AGO).misplaced == ()
