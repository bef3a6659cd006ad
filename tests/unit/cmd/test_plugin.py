# SPDX-License-Identifier: Apache-2.0

"""``os-acc plugin``: the list, the package of a new one, and the names it rejects.

``tests/functional/manual/test_tutorial.py`` installs such packages and runs their
tests.
"""

import ast
import errno
import os
import re
import string
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from stevedore import ExtensionManager

from os_acc import conf, exception, privsep
from os_acc.cmd import plugin
from os_acc.cmd.plugin import package_names, write_package
from os_acc.plugins import loader
from os_acc.plugins.loader import NAMESPACE
from tests.unit.cmd.golden_files import expect
from tools import plugin_contract


def files_of(made: Path) -> dict[str, str]:
    """Return the text of each file of a package."""
    return {
        str(path.relative_to(made)): path.read_text(encoding="utf-8")
        for path in made.rglob("*")
        if path.is_file()
    }


def test_what_the_manual_shows_of_a_new_plugin(console, tmp_path, monkeypatch):
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    # A vendor's workstation has no configuration of a service.
    console.config_file.unlink()
    ran = console.run("plugin", "new", "acme")
    assert (ran.status, ran.err) == (0, "")
    expect("plugin-new.txt", ran.out)
    assert ran.out.splitlines() == sorted(
        f"os-acc-acme/{name}" for name in files_of(workplace / "os-acc-acme")
    )


def test_the_package_is_made_below_the_directory(console, tmp_path):
    below = tmp_path / "new" / "place"
    assert console.run("plugin", "new", "acme", f"--directory={below}").status == 0
    assert [path.name for path in below.iterdir()] == ["os-acc-acme"]


@pytest.mark.parametrize("name", ["a", "acme_fpga2", "x" * 30])
def test_each_file_has_the_names_of_the_package(name, tmp_path):
    files = files_of(write_package(name, tmp_path))
    settings = tomllib.loads(files["pyproject.toml"])
    project = settings["project"]
    assert project["name"] == package_names(name)["distribution"]
    (target,) = project["entry-points"]["os_acc"].items()
    module, _, attribute = target[1].partition(":")
    assert target[0] == name
    source = ast.parse(files[module.replace(".", "/") + ".py"])
    classes = [each.name for each in source.body if isinstance(each, ast.ClassDef)]
    assert classes == [attribute]
    assert f'"os_acc_{name}_helper"' in files[f"os_acc_{name}/privsep.py"]
    for path, text in files.items():
        assert not string.Template(text).get_identifiers(), path
        if path.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 88 + len(name), path


@pytest.mark.parametrize("name", ["class", "test"])
def test_a_package_with_a_word_of_python_or_pytest_passes_its_tests(name, tmp_path):
    names = package_names(name)
    made = write_package(name, tmp_path)
    installed = made / f"{names['package']}-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {names['distribution']}\nVersion: 0.1.0\n"
    )
    points = tomllib.loads((made / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["os_acc"]
    (installed / "entry_points.txt").write_text(
        "[os_acc]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
    )
    quick = "conforms and devices_are_valid or guest_has or runs_in_a_helper"

    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"--basetemp={tmp_path / 'tests'}", "-k", quick),
        ],
        cwd=made,
        env={
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "PYTHONPATH": str(made),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed, 20 deselected" in ran.stdout


#: Variables of a plugin's tests, each with the class that it has.
CLASSES = {
    "host": ("os_acc.testing", "TestHost"),
    "function": ("os_acc.testing", "SimulatedFunction"),
    "target": ("os_acc.privsep", "StepTarget"),
}
TUTORIAL = Path(__file__).parents[3] / "doc/source/contributor/tutorial.rst"


def test_its_tests_use_members_of_the_contract_alone(tmp_path):
    files = files_of(write_package("acme", tmp_path))
    used = {
        (each.value.id, each.attr)
        for path, text in files.items()
        # In plugin.py a function is that of a candidate.
        if path.endswith(".py") and not path.endswith("/plugin.py")
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id in CLASSES
    }
    if "StepTarget(" in "".join(files.values()):
        used.add(("target", "__init__"))
    tutorial = TUTORIAL.read_text(encoding="utf-8")
    used |= {("host", each) for each in re.findall(r"\bhost\.(\w+)", tutorial)}
    assert {("host", "plug"), ("function", "write"), ("target", "set")} < used
    known = {
        (name, member)
        for name, key in CLASSES.items()
        for member in plugin_contract.OTHERS[key]
    }
    assert used - known == set()


def test_each_template_is_a_file_of_the_package():
    there = {path.name for path in plugin._TEMPLATES.iterdir()}
    assert there == set(filter(None, plugin._FILES.values()))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Acme",
        "acme-fpga",
        "acme fpga",
        "_acme",
        "acme_",
        "acme__fpga",
        "1acme",
        "../acme",
        "acme\n",
        "acmé",
        "x" * 31,
    ],
)
def test_a_name_that_is_no_name_is_rejected(name):
    with pytest.raises(exception.InvalidInput, match="cannot name a plugin"):
        package_names(name)


def test_nothing_is_made_for_a_rejected_name(console, tmp_path):
    ran = console.run("plugin", "new", f"--directory={tmp_path / 'new'}", "Acme")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(
        "os-acc: 'Acme' cannot name a plugin\nhint: use lower-case"
    )
    assert not (tmp_path / "new").exists()


def test_the_name_of_an_installed_plugin_is_rejected():
    with pytest.raises(exception.InvalidInput, match=r"os.acc has a plugin named nvme"):
        package_names("nvme")


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("placement", "os_acc_placement"),
        ("nvme_helper", "os_acc_nvme_helper"),
    ],
)
def test_a_name_whose_options_are_those_of_os_acc_is_rejected(
    console, tmp_path, name, section
):
    ran = console.run("plugin", "new", f"--directory={tmp_path / 'new'}", name)
    assert ran.status == 1
    assert ran.err == (
        f"os-acc: {name} cannot name a plugin: [{section}] is an option group of "
        "os_acc or of an installed plugin\n"
        f"hint: choose another name: os_acc_{name} and os_acc_{name}_helper have to be "
        "groups of the new plugin alone\n"
    )
    assert not (tmp_path / "new").exists()


def test_no_group_of_options_can_be_that_of_a_new_plugin():
    groups = [str(getattr(each, "name", each)) for each, _options in conf.list_opts()]
    sections = [each.cfg_section for each in privsep.contexts()]
    for group in {*groups, *sections}:
        name = group.removeprefix("os_acc_")
        if name not in (group, ""):
            with pytest.raises(exception.InvalidInput):
                package_names(name)


@pytest.mark.parametrize("name", ["acme", "acme_helper"])
def test_a_name_whose_options_are_those_of_a_vendor_is_rejected(monkeypatch, name):
    package_names(name)
    helper = SimpleNamespace(cfg_section="os_acc_acme_helper")
    monkeypatch.setattr(privsep, "_contexts", [*privsep.contexts(), helper])
    with pytest.raises(exception.InvalidInput, match=r"\[os_acc_acme_helper\] is an"):
        package_names(name)


def test_the_helper_has_no_group_of_an_installed_plugin(monkeypatch):
    # A plugin without options has its group as well.
    installed = metadata.EntryPoint("acme_helper", "acme:Plugin", "os_acc")
    found = metadata.EntryPoints((installed,))
    source = SimpleNamespace(entry_points=found.select)
    monkeypatch.setattr(plugin, "metadata", source)
    with pytest.raises(exception.InvalidInput, match=r"\[os_acc_acme_helper\] is an"):
        package_names("acme")
    names = package_names("acme2")
    assert (names["package"], names["helper"]) == (
        "os_acc_acme2",
        "os_acc_acme2_helper",
    )


@pytest.mark.parametrize("name", ["vfio", "acme_vfio", "vfio_acme"])
def test_a_name_of_drivers_for_guests_is_rejected(name):
    with pytest.raises(exception.InvalidInput, match="drivers with the word vfio are"):
        package_names(name)


def test_no_existing_directory_is_changed(console, tmp_path):
    made = tmp_path / "os-acc-acme"
    made.mkdir()
    ran = console.run("plugin", "new", "acme", f"--directory={tmp_path}")
    assert ran.status == 1
    assert ran.err.startswith(f"os-acc: cannot make {made}: File exists\nhint: ")
    assert list(made.iterdir()) == []


def test_a_package_that_cannot_be_completed_is_removed(tmp_path, monkeypatch):
    write, limit = Path.write_text, 3

    def until_the_disk_is_full(path: Path, text: str, encoding: str) -> int:
        if len(list(tmp_path.rglob("*.*"))) > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", until_the_disk_is_full)
    with pytest.raises(exception.InvalidInput, match="No space left") as caught:
        write_package("acme", tmp_path)
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


# -- the list ------------------------------------------------------------------

HERE = "tests.unit.acme"


@pytest.fixture
def installed(
    monkeypatch: pytest.MonkeyPatch, install_plugins: Callable[..., None]
) -> None:
    """Install plugins in each state, and two of one name."""
    install_plugins(
        acme=f"{HERE}:Acme",
        fails=f"{HERE}:FailsToStart",
        lost=f"{HERE}:FailsToDiscover",
        newer=f"{HERE}:Newer",
        off="tests.unit.no_such_module:Acme",
    )
    ExtensionManager.ENTRY_POINT_CACHE[NAMESPACE] += [
        EntryPoint("twice", f"{HERE}:{kind}", NAMESPACE) for kind in ("Acme", "Rival")
    ]

    def distribution_of(point: EntryPoint) -> tuple[str, str]:
        if point.name == "pci":
            return "os-acc", "1.0.0"
        if point.name == "twice":
            return {"Acme": "acme-gpu", "Rival": "rival-gpu"}[point.attr], "0.3"
        return f"acme-{point.name}", "0.3"

    monkeypatch.setattr(loader, "distribution_of", distribution_of)


ENABLED = "enabled_plugins = acme,fails,lost,newer,pci,twice"


def test_what_the_manual_shows_of_the_plugins(console, installed):
    console.configure(more=ENABLED)
    ran = console.run("plugin", "list", "--max-width", "120")
    assert ran.status == 0
    expect("plugin-list.txt", ran.out)


def test_the_plugins_of_os_acc_are_those_of_its_distribution(console):
    found = console.json("plugin", "list")
    assert {each["Distribution"] for each in found} == {"os-acc"}
    assert {each["State"] for each in found} == {"loaded"}
