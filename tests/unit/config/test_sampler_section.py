"""The section `sampler`: its class is what the entry-point group declares under its kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from hyrt.config import apply_overrides, build_config, to_yaml
from hyrt.errors import ConfigError, PluginConflictError
from hyrt.runtime.entry_points import _installed
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.sampling.settings.saint_settings import SaintSettings
from hyrt.section import Count

ROOT = Path(__file__).parents[3]
# What earlier versions wrote: the keys of both kinds, whichever was chosen.
EARLIER = {"fanout": None, "roots": 2000, "walk_length": 2, "units": 1, "on_device": False}


class HalfSettings(SamplerSettings):
    """A third party's."""

    half: Count = 2

    def build(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


class SameNameSettings(HalfSettings):
    """Another third party's, with a setting of that name and another default."""

    half: Count = 5


class Unbuilt(SamplerSettings):
    pass


class Raises(HalfSettings):
    def check(self, layers: int) -> None:
        raise KeyError("depth")


class Refuses(HalfSettings):
    def check(self, layers: int) -> None:
        raise ValueError("sampler.half is too small")


class Unread(HalfSettings):
    what: "NoSuchType" = 1  # type: ignore[name-defined] # noqa: F821, UP037


@pytest.fixture
def installed() -> Iterator[list[EntryPoint]]:
    """Entry points beside the built-in ones."""
    real, more = entry_points, list[EntryPoint]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hyrt.runtime.entry_points.entry_points",
            lambda group: [*real(group=group), *(each for each in more if each.group == group)],
        )
        yield more


def declare(installed: list[EntryPoint], name: str, value: str) -> None:
    _installed.cache_clear()
    installed.append(EntryPoint(name, value, "hyrt.samplers"))


def test_the_kind_chooses_the_class() -> None:
    assert type(build_config({}).sampler) is NeighborSettings
    assert type(build_config({"sampler": {"fanout": [3, 3]}}).sampler) is NeighborSettings
    saint = build_config({"sampler": {"kind": "saint", "roots": 7}}).sampler
    assert type(saint) is SaintSettings
    assert (saint.roots, saint.walk_length, saint.units) == (7, 2, 1)


def test_the_yaml_has_the_settings_of_the_kind() -> None:
    written = yaml.safe_load(to_yaml(build_config({"sampler": {"kind": "saint"}})))["sampler"]
    assert written == {"kind": "saint", "fanout": None, "roots": 2000, "walk_length": 2, "units": 1}
    written = yaml.safe_load(to_yaml(build_config({})))["sampler"]
    assert written == {
        "kind": "neighbor",
        "fanout": None,
        "on_device": False,
        "degrees": "full",
        "relation_fanout": {},
    }


@pytest.mark.parametrize("kind", ["neighbor", "saint"])
def test_files_of_earlier_versions_are_read(kind: str) -> None:
    assert build_config({"sampler": EARLIER | {"kind": kind}}) == build_config({"sampler": {"kind": kind}})


def test_a_setting_without_effect_is_an_error_but_not_in_a_run_that_was_started() -> None:
    ignored = {"sampler": EARLIER | {"kind": "neighbor", "roots": 100}}
    message = r"^sampler\.roots is a setting of sampler\.kind=saint, .* sampler\.kind=neighbor: remove it$"
    with pytest.raises(ConfigError, match=message):
        build_config(ignored)
    assert build_config(ignored, lenient=True) == build_config({})
    with pytest.raises(ConfigError, match=r"sampler\.on_device is a setting of sampler\.kind=neighbor"):
        build_config({"sampler": {"kind": "saint", "on_device": True}})


def test_a_run_of_an_earlier_version_does_not_get_later_defaults_of_its_model() -> None:
    before = build_config({"model": {"kind": "gat"}}).model_dump()
    assert before["model"].pop("attention_dropout") == 0.6
    assert build_config(before, lenient=True).model.attention_dropout == 0
    assert build_config(before).model.attention_dropout == 0.6


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["sampler.kind=sant"],
            r"unknown sampler\.kind 'sant' \(did you mean 'saint'\?\): the known ones are .*neighbor, ",
        ),
        (["sampler.kind=3"], r"setting sampler\.kind=3 must be a string"),
        (
            ["sampler=saint"],
            r"sampler='saint' is invalid, because sampler is a section: .* such as sampler.kind=saint",
        ),
        (["sampler.rots=3"], r"unknown setting 'sampler\.rots': did you mean 'sampler\.roots'"),
        (["sampler.kind=saint", "sampler.fanouts=[1]"], r"did you mean 'sampler\.fanout'"),
        (
            ["sampler.kind=saint", "sampler.roots=0"],
            r"setting sampler\.roots=0 must be at least 1",
        ),
        (
            ["sampler.kind=saint", "sampler.fanout=[1]"],
            r"does not match model\.layers=2: set one fan-out per layer",
        ),
    ],
)
def test_wrong_settings(entries: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(apply_overrides({}, entries))


def test_a_third_partys_kind_is_a_peer(installed: list[EntryPoint]) -> None:
    declare(installed, "half", f"{__name__}:HalfSettings")
    found = build_config({"sampler": {"kind": "half", "half": 3}})
    assert type(found.sampler) is HalfSettings
    assert build_config(yaml.safe_load(to_yaml(found))) == found
    with pytest.raises(ConfigError, match=r"sampler\.half is a setting of sampler\.kind=half,"):
        build_config({"sampler": {"half": 3}})
    declare(installed, "other", f"{__name__}:HalfSettings")
    declare(installed, "third", f"{__name__}:HalfSettings")
    with pytest.raises(ConfigError, match=r"of sampler\.kind=half, other or third, and has no effect"):
        build_config({"sampler": {"half": 3}})
    with pytest.raises(ConfigError, match=r"setting sampler\.half=0"):
        build_config({"sampler": {"kind": "half", "half": 0}})


def test_the_default_of_any_other_kind_is_dropped(installed: list[EntryPoint]) -> None:
    declare(installed, "half", f"{__name__}:HalfSettings")
    declare(installed, "same", f"{__name__}:SameNameSettings")
    for default in (2, 5):
        assert build_config({"sampler": {"half": default}}) == build_config({})
    with pytest.raises(ConfigError, match=r"of sampler\.kind=half or same, and has no effect"):
        build_config({"sampler": {"half": 3}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "no_such_module:Sampler",
            r"sampler\.kind 'broken' is broken, because no_such_module:Sampler .*No module",
        ),
        (
            "pathlib:Path",
            r"'broken' must be a class derived from .*\.SamplerSettings, but pathlib:Path is not",
        ),
        (f"{__name__}:Unbuilt", r"sampler\.kind 'broken' \(.*: its class Unbuilt does not define build: "),
        (f"{__name__}:Raises", r"^sampler\.kind 'broken' \(.*: check failed: KeyError: 'depth'$"),
        (f"{__name__}:Refuses", r"^sampler\.half is too small$"),
        (f"{__name__}:Unread", r"'broken' \(.*: reading its fields failed: .*'NoSuchType' is not defined"),
    ],
)
def test_a_broken_plug_in_is_heard_of_where_it_is_wanted(
    installed: list[EntryPoint], value: str, message: str
) -> None:
    declare(installed, "broken", value)
    with pytest.raises(ConfigError, match=message):
        build_config({"sampler": {"kind": "broken"}})
    assert build_config({"sampler": EARLIER}) == build_config({})


def test_two_claims_to_one_kind_conflict(installed: list[EntryPoint]) -> None:
    declare(installed, "half", "one:Half")
    declare(installed, "half", "two:Half")
    with pytest.raises(
        PluginConflictError, match=r"sampler\.kind 'half' is declared by one:Half and by two:Half"
    ):
        build_config({"sampler": {"kind": "half"}})


def test_settings_are_read_without_what_takes_long() -> None:
    code = (
        "import sys; from hyrt.config import build_config\n"
        "for kind in ('neighbor', 'saint'): build_config({'sampler': {'kind': kind}})\n"
        "print([m for m in ('torch', 'numpy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "neighbor"}, "fan-out 25,10 · batch 64"),
        ({"kind": "saint", "units": 3, "roots": 40}, "GraphSAINT 3 x 40 walks of 2"),
        ({"kind": "half"}, "half sampler · batch 64"),
    ],
)
def test_each_kind_describes_itself(
    installed: list[EntryPoint], settings: dict[str, Any], words: str
) -> None:
    declare(installed, "half", f"{__name__}:HalfSettings")
    assert build_config({"sampler": settings}).sampler.describe(2, 64) == words
