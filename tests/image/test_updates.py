"""Another version of the agent on a gateway: signed, on trial, with a way back, whatever happens meanwhile."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from edge_agent.errors import ConfigError
from edge_agent.ports.service_manager import parent_answers
from edge_agent.provisioning.updates.bundle import Bundle, Manifest
from edge_agent.provisioning.updates.version_folder import VersionFolder
from edge_agent.provisioning.updates.versions import (
    IMAGE,
    MOST_STARTS,
    SETTLED_S,
    TRIAL_S,
    Allowed,
    Installed,
    ServiceState,
    Versions,
    admit,
    choose,
    give_up,
    healthy,
    is_news,
    needed,
    stopped,
    verdict,
)
from tests.image.cut_disk import CutDisk, PowerCutError

FORM: Final = (1, 12)
NEWER: Final = (1, 13)
OF_IMAGE: Final = Installed("0.1.0", FORM)
V2, V3 = Installed("0.2.0", FORM), Installed("0.3.0", FORM)


def start(versions: Versions, spool: tuple[int, int] | None = FORM, image: Installed = OF_IMAGE) -> Versions:
    return choose(versions, image, spool, set(versions.installed))


def with_two() -> Versions:
    """0.2.0 in force, 0.3.0 on trial."""
    return admit(healthy(start(admit(Versions(), V2, OF_IMAGE))), V3, OF_IMAGE)


def test_a_version_is_on_trial_until_it_is_healthy() -> None:
    versions = start(admit(Versions(), V2, OF_IMAGE))
    assert (versions.chosen, versions.current, versions.trial) == ("0.2.0", IMAGE, "0.2.0")
    versions = start(healthy(versions))
    assert (versions.chosen, versions.current, versions.before, versions.trial) == ("0.2.0", "0.2.0", IMAGE, None)


def test_a_version_that_does_not_start_is_given_up_for_the_one_before() -> None:
    versions = with_two()
    for number in range(1, MOST_STARTS + 1):
        versions = start(versions)
        assert (versions.chosen, versions.starts) == ("0.3.0", number)
    versions = start(versions)
    assert (versions.chosen, versions.trial, versions.failed) == ("0.2.0", None, ("0.3.0",))


def test_if_that_does_not_start_either_the_copy_in_the_image_runs() -> None:
    versions = with_two()
    chosen = []
    for _ in range(2 * MOST_STARTS + 3):
        versions = start(versions)
        chosen.append(versions.chosen)
    assert chosen == ["0.3.0"] * MOST_STARTS + ["0.2.0"] * MOST_STARTS + [IMAGE] * 3


def test_starts_count_from_the_last_time_it_was_healthy() -> None:
    versions = healthy(start(admit(Versions(), V2, OF_IMAGE)))
    for _ in range(3 * MOST_STARTS):
        versions = healthy(start(start(versions)))
    assert (versions.current, versions.failed) == ("0.2.0", ())


def test_requested_restarts_of_a_version_in_force_do_not_give_it_up() -> None:
    versions = healthy(start(admit(Versions(), V2, OF_IMAGE)))
    for _ in range(3 * MOST_STARTS):
        versions = start(stopped(versions))
        assert (versions.chosen, versions.current, versions.starts, versions.failed) == ("0.2.0", "0.2.0", 1, ())
    for _ in range(MOST_STARTS):  # it dies, or the power fails
        versions = start(versions)
    assert (versions.chosen, versions.failed) == (IMAGE, ("0.2.0",))


def test_requested_restarts_of_a_trial_count() -> None:
    versions = with_two()
    for _ in range(MOST_STARTS + 1):
        versions = start(stopped(versions))
    assert (versions.chosen, versions.failed) == ("0.2.0", ("0.3.0",))


@pytest.mark.parametrize(
    ("new", "allowed", "part"),
    [
        (Installed("0.2.0", FORM), {}, "in force already"),
        (Installed("0.1.9", FORM), {}, "--downgrade"),
        (Installed("0.1.9", (1, 11)), {"downgrade": True}, "cannot read the spool"),
        (Installed("0.3.0", FORM), {}, "--again"),
        (Installed("0.4.0", NEWER), {}, "--one-way"),
        (Installed("0.4.0-rc1", FORM), {}, "is not a version"),
    ],
)
def test_what_is_refused_unless_told(new: Installed, allowed: dict[str, bool], part: str) -> None:
    versions = give_up(with_two(), "0.3.0")
    with pytest.raises(ConfigError, match=part):
        admit(versions, new, OF_IMAGE, Allowed(**allowed))
    if part.startswith("--"):
        told = Allowed(**{part[2:].replace("-", "_"): True})
        assert start(admit(versions, new, OF_IMAGE, told)).chosen == new.version


def test_versions_are_compared_by_their_numbers() -> None:
    versions = healthy(start(admit(Versions(), Installed("0.9.0", FORM), OF_IMAGE)))
    assert start(admit(versions, Installed("0.10.0", FORM), OF_IMAGE)).chosen == "0.10.0"


def test_after_its_first_commit_only_a_version_that_reads_the_spool_runs() -> None:
    versions = start(admit(with_two(), Installed("0.4.0", NEWER), OF_IMAGE, Allowed(one_way=True)))
    for _ in range(MOST_STARTS):
        versions = start(versions, NEWER)
    for _ in range(3 * MOST_STARTS):
        versions = start(versions, NEWER)
        assert versions.chosen == "0.4.0", "the others would refuse the spool"
    assert start(versions, FORM).chosen == "0.2.0", "it committed nothing after all"
    assert healthy(versions).current == "0.4.0"


def test_a_version_that_committed_nothing_is_no_one_way_street() -> None:
    versions = admit(with_two(), Installed("0.4.0", NEWER), OF_IMAGE, Allowed(one_way=True))
    for _ in range(MOST_STARTS + 1):
        versions = start(versions, FORM)
    assert versions.chosen == "0.2.0"


def test_a_newer_image_comes_before_what_was_installed_on_an_older_one() -> None:
    versions = healthy(start(admit(Versions(), V2, OF_IMAGE)))
    assert start(versions, image=Installed("0.1.5", FORM)).chosen == "0.2.0"
    assert start(versions, image=Installed("0.2.1", FORM)).chosen == IMAGE
    older = healthy(start(admit(Versions(), Installed("0.0.9", FORM), OF_IMAGE, Allowed(downgrade=True))))
    assert start(older).chosen == "0.0.9", "its operator wanted it on this image"


def test_a_version_whose_files_are_gone_is_none() -> None:
    versions = healthy(start(with_two()))
    assert choose(versions, OF_IMAGE, FORM, {"0.2.0"}).chosen == IMAGE
    assert choose(versions, OF_IMAGE, FORM, set()).chosen == IMAGE


def judge(versions: Versions, service: ServiceState, waited_s: float) -> str:
    return verdict(versions, service, waited_s, parent_answers(versions.chosen))


def test_a_trial_must_reach_its_parent_and_one_in_force_must_serve() -> None:
    trial = start(with_two())
    in_force = start(healthy(start(admit(Versions(), V2, OF_IMAGE))))
    long = ServiceState(True, "", SETTLED_S)
    assert judge(trial, long, TRIAL_S) == "wait"
    assert judge(trial, ServiceState(True, parent_answers("0.2.0"), 1.0), 1.0) == "wait", "of another process"
    assert judge(trial, ServiceState(True, parent_answers("0.3.0"), 1.0), 1.0) == "healthy"
    assert judge(trial, ServiceState(False, parent_answers("0.3.0")), 1.0) == "wait"
    assert judge(trial, long, TRIAL_S + 1) == "unfit"
    assert judge(in_force, long, 1.0) == "healthy"
    assert judge(in_force, ServiceState(True, "", SETTLED_S - 1), 1e9) == "wait", "no network: no other is better"


def test_a_version_on_the_card_is_installed_once() -> None:
    assert is_news(Versions(), V2, OF_IMAGE)
    assert not is_news(Versions(), OF_IMAGE, OF_IMAGE)
    assert not is_news(with_two(), V3, OF_IMAGE), "on trial"
    assert not is_news(give_up(with_two(), "0.3.0"), V3, OF_IMAGE), "given up"
    assert not is_news(healthy(start(with_two())), V2, OF_IMAGE), "older"
    assert not is_news(Versions(from_card=("0.2.0",)), V2, OF_IMAGE), "installed from the card before"


def test_a_version_older_than_a_new_image_is_no_news_and_a_downgrade() -> None:
    """The image is flashed over an older installed version, which is then void."""
    versions = healthy(start(admit(Versions(), V2, OF_IMAGE)))
    image, between = Installed("0.5.0", FORM), Installed("0.4.0", FORM)
    assert not is_news(versions, between, image)
    with pytest.raises(ConfigError, match=r"older than 0\.5\.0"):
        admit(versions, between, image)
    told = admit(versions, between, image, Allowed(downgrade=True))
    assert start(told, image=image).chosen == "0.4.0"


def test_files_of_a_version_that_runs_stay_though_it_was_given_up() -> None:
    """Its process may import a module later; the next start is that of another version."""
    running = start(with_two())
    assert running.chosen == "0.3.0"
    assert needed(give_up(running, "0.3.0")) == {"0.2.0", "0.3.0"}


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_something_that_reads_the_spool_runs(seed: int) -> None:
    """A gateway's life at random. A version is good or bad from the beginning; a good one commits when it runs."""
    rng = random.Random(seed)
    versions, spool = Versions(), FORM
    good = {IMAGE}
    for step in range(60):
        if rng.random() < 0.1:
            form = rng.choice([FORM, FORM, NEWER])
            new = Installed(f"0.{rng.randrange(2, 9)}.{step}", form)
            allowed = Allowed(*(rng.random() < 0.5 for _ in range(3)))
            try:
                versions = admit(versions, new, OF_IMAGE, allowed)
            except ConfigError:
                continue
            good |= {new.version} if rng.random() < 0.6 else set()
        versions = choose(versions, OF_IMAGE, spool, set(versions.installed))
        runs = versions.installed.get(versions.chosen, OF_IMAGE)
        reading = [each for each in (*versions.installed.values(), OF_IMAGE) if each.spool >= spool]
        assert runs.spool >= spool or not reading
        assert versions.starts <= MOST_STARTS or versions.chosen in ("", *versions.failed)
        if versions.chosen in good and runs.spool >= spool:
            spool = runs.spool
            versions = healthy(versions) if rng.random() < 0.8 else versions
        elif rng.random() < 0.2:
            spool = max(spool, runs.spool)  # it commits and fails later
    for _ in range(4 * MOST_STARTS + 1):
        versions = choose(versions, OF_IMAGE, FORM, set(versions.installed))
        if versions.chosen in good:
            break
    assert versions.chosen in good, "with a spool that all read it ends with one that runs"


# --- on the disk -----------------------------------------------------------------------------------------------------


def bundle_of(version: str, spool: tuple[int, int] = FORM) -> Bundle:
    sources = {
        "edge_agent/__init__.py": f'"""The agent."""\n\n__version__ = "{version}"\n',
        "edge_agent/__main__.py": "from edge_agent import __version__\n\nprint(__version__)\n",
        "edge_agent/machines/node.py": "".join(f"line_{n} = {n}\n" for n in range(50)),
    }
    return Bundle(Manifest(version, spool, (3, 11), 1, ""), {name: text.encode() for name, text in sources.items()})


def install(store: VersionFolder, bundle: Bundle, allowed: Allowed) -> None:
    """What `headwater update install` does to the disk."""
    versions = store.read()
    admit(versions, bundle.manifest.installed(), OF_IMAGE, allowed)
    left = store.prune(versions)
    store.add(bundle)
    store.write(admit(left, bundle.manifest.installed(), OF_IMAGE, allowed))


def run(store: VersionFolder) -> str:
    """What a start does to the disk. Returns the version that starts."""
    versions = choose(store.read(), OF_IMAGE, FORM, store.present())
    store.write(versions)
    return versions.chosen


def whole(store: VersionFolder, version: str) -> bool:
    folder = store.path(version)
    files = bundle_of(version).files
    compiled = len(list(folder.rglob("*.pyc")))
    right = all(
        (folder / name).is_file() and (folder / name).read_bytes() == content for name, content in files.items()
    )
    return right and compiled == len(files) and all(path.stat().st_size for path in folder.rglob("*.pyc"))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_step_leaves_a_version_that_is_whole(tmp_path: Path, seed: int, again: bool) -> None:
    """again: the same version was given up before, and its files lie there."""
    store = VersionFolder(tmp_path / "0")
    install(store, bundle_of("0.2.0"), Allowed())
    run(store)
    store.write(healthy(store.read()))
    install(store, bundle_of("0.3.0"), Allowed())
    run(store)
    store.write(give_up(store.read(), "0.3.0") if again else healthy(store.read()))
    step = 0
    while True:
        step += 1
        folder = tmp_path / str(step)
        shutil.copytree(store.folder, folder)
        new = "0.3.0" if again else "0.4.0"
        disk = CutDisk(step, seed)
        try:
            cut = VersionFolder(folder, disk)
            install(cut, bundle_of(new), Allowed(again=again))
            run(cut)
            cut.prune(healthy(cut.read()))
            break
        except PowerCutError:
            pass
        before = "0.2.0" if again else "0.3.0"
        after = VersionFolder(folder)
        assert json.loads((folder / "state.json").read_text())["current"] in (before, new), step
        chosen = run(after)
        assert chosen in (before, new), (step, chosen)
        assert whole(after, chosen), (step, chosen)
        if new not in (after.read().current, after.read().trial):
            install(after, bundle_of(new), Allowed(again=True))
        assert run(after) == new
        assert whole(after, new), step
    assert step > 20, "every write, rename and removal is a step"
    assert needed(cut.read()) == {path.name for path in (folder / "versions").iterdir()}, "nothing else is left"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"installed": {}}', b"\x00" * 200])
def test_a_state_that_cannot_be_read_is_the_copy_in_the_image(tmp_path: Path, content: bytes) -> None:
    store = VersionFolder(tmp_path)
    install(store, bundle_of("0.2.0"), Allowed())
    (tmp_path / "state.json").write_bytes(content)
    assert run(VersionFolder(tmp_path)) == IMAGE
    newer = choose(VersionFolder(tmp_path).read(), OF_IMAGE, NEWER, {"0.2.0"})
    assert newer.chosen == IMAGE, "nobody reads the spool"


def test_without_a_state_a_newer_spool_finds_the_version_that_reads_it(tmp_path: Path) -> None:
    store = VersionFolder(tmp_path)
    install(store, bundle_of("0.2.0", NEWER), Allowed(one_way=True))
    (tmp_path / "state.json").unlink()
    assert choose(store.read(), OF_IMAGE, NEWER, store.present()).chosen == "0.2.0"


def test_the_link_names_the_chosen_version_and_none_is_the_image(tmp_path: Path) -> None:
    store, link = VersionFolder(tmp_path), tmp_path / "run" / "code"
    store.point("0.2.0", link)
    assert link.readlink() == tmp_path / "versions" / "0.2.0"
    store.point(IMAGE, link)
    assert not link.is_symlink()
