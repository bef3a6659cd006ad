# SPDX-License-Identifier: Apache-2.0

"""An installed os_acc has the files and commands that its documents promise."""

import configparser
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from oslo_rootwrap import filters, wrapper

import os_acc
from os_acc.cmd import privileges
from os_acc.privsep import Context
from tests.unit.helper_commands import as_started

ROOT = Path(__file__).parents[2]
#: The package under test: installed from a wheel by ``tox -e py3``, else the checkout.
PACKAGE = Path(os_acc.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILTERS = ROOT / "etc/os-acc/rootwrap.d"
CONTEXTS = (
    "os_acc.privsep.base",
    "os_acc.privsep.inspect",
    "os_acc.privsep.image",
    "os_acc.privsep.nvme.context",
)


def modules_loaded_by(statement: str) -> set[str]:
    """Return the top-level modules of a fresh interpreter after a statement."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def entry_points(group: str) -> list[metadata.EntryPoint]:
    """Return the entry points in setup.cfg, whether installed or not."""
    config = configparser.ConfigParser(strict=False)
    config.optionxform = str  # type: ignore[assignment,method-assign]
    config.read(ROOT / "setup.cfg")
    lines = config["entry_points"][group].strip().splitlines()
    pairs = (line.split("=", 1) for line in lines)
    return [metadata.EntryPoint(n.strip(), v.strip(), group) for n, v in pairs]


def readme_command(name: str) -> str:
    """Return a command of the README, found as .ci/run finds it."""
    text = (ROOT / "README.rst").read_text()
    found = re.search(rf":name: {name}\n\n +(.+)\n\n", text)
    assert found, f"README.rst has no command {name}"
    return found[1]


def test_child_processes_run_the_package_under_test():
    program = "import os_acc; print(os_acc.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == os_acc.__file__


def test_the_package_has_the_files_of_the_checkout_and_no_other():
    """A wheel may lack a file, or have a deleted one that a build directory kept."""
    of_checkout, of_package = (
        {
            str(path.relative_to(top))
            for path in top.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        for top in (ROOT / "os_acc", PACKAGE)
    )
    assert of_package == of_checkout


def test_importing_the_library_loads_no_oslo_module():
    loaded = modules_loaded_by("import os_acc")
    assert {name for name in loaded if name.startswith("oslo_")} == set()


def test_the_service_loads_no_http_library():
    """Hosts whose devices and profiles are in files send no request."""
    loaded = modules_loaded_by("import os_acc.service, os_acc.plugins.pci")
    assert not loaded & {"requests", "urllib3", "keystoneauth1"}


def test_using_every_module_never_loads_eventlet():
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in SOURCES
        if path.name not in ("__init__.py", "__main__.py")
        # Only Nova loads this package, where Nova is installed.
        and not path.is_relative_to(PACKAGE / "nova")
    ]
    loaded = modules_loaded_by(f"import {', '.join(names)}")
    assert "os_acc" in loaded
    # Until 3.11 oslo.privsep imports it.
    if "eventlet" not in modules_loaded_by("import oslo_privsep.daemon"):
        assert "eventlet" not in loaded


def test_no_file_imports_eventlet_even_where_it_is_rarely_run():
    pattern = re.compile(
        r"^\s*(import|from)\s[^#\n]*\b(eventlet|greenlet)\b", re.MULTILINE
    )
    assert pattern.search("    import os, greenlet")
    assert [path for path in SOURCES if pattern.search(path.read_text())] == []


def test_every_directory_with_code_is_a_package():
    bare = {
        path.parent for path in SOURCES if not (path.parent / "__init__.py").exists()
    }
    assert bare == set()


@pytest.mark.parametrize(
    "group", ["console_scripts", "oslo.config.opts", "os_acc", "os_acc.cli"]
)
def test_every_entry_point_leads_somewhere(group):
    for point in entry_points(group):
        assert callable(point.load()), point


def test_what_nova_loads_is_there_and_nothing_else_imports_nova():
    (point,) = entry_points("nova.api.extra_spec_validators")
    assert importlib.util.find_spec(point.value)
    importing = {
        path.relative_to(PACKAGE).parts[0]
        for path in SOURCES
        if re.search(r"^\s*(import|from) nova\b", path.read_text(), re.MULTILINE)
    }
    assert importing == {"nova"}


def test_the_types_and_the_files_for_etc_are_shipped():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    sources = [
        line.strip()
        for line in config["files"]["data_files"].splitlines()
        if line.strip() and "=" not in line
    ]
    assert {Path(each).name for each in sources} == {
        "50-os-acc.rules",
        "compute1.yml",
        "kolla-build.conf",
        "nova-compute.conf",
        "os-acc",
        "os-acc-metrics.service",
        "os-acc-metrics.timer",
        "os-acc.filters",
        "os-acc.json",
        "os-acc.rules.yml",
        "os-acc.yml",
        "privileged.conf.sample",
        "user_os_acc.yml",
    }
    assert all((ROOT / each).is_file() for each in sources)
    # pbr ships the files in the package's own directory.
    assert config["files"]["packages"].split() == ["os_acc"]
    assert (ROOT / "os_acc/py.typed").is_file()


@pytest.mark.parametrize("name", ["run-the-demo", "run-the-tests"])
def test_each_readme_command_is_one_line_that_needs_python_only(name):
    steps = readme_command(name).split(" && ")
    assert shlex.split(steps[0]) == ["python3", "-m", "venv", ".venv"]
    assert all(shlex.split(step)[0].startswith(".venv/bin/") for step in steps[1:])


def test_readme_commands_run_tox_environments_that_exist():
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    demo = shlex.split(readme_command("run-the-demo").split(" && ")[-1])
    assert f"testenv:{demo[demo.index('-e') + 1]}" in tox
    assert tox["tox"]["env_list"].split() == ["py3"]
    assert "pytest tests/unit" in tox["testenv"]["commands"]


def test_ci_knows_every_lane_that_it_lists():
    script = (ROOT / ".ci/run").read_text()
    first = re.search(r"^FIRST=\((.*)\)$", script, re.M)
    queue = re.search(r"^QUEUE=\((.*)\)$", script, re.M)
    assert first
    assert queue
    lanes = {*first[1].split(), *queue[1].split()}
    assert lanes == set(re.findall(r"^lane_(\w+)\(\)", script, re.M))
    assert lanes == set(re.findall(r"\[(\w+)\]=\d+", script))


# -- the privileged helper's filters ----------------------------------------


@pytest.fixture
def rootwrap() -> list[filters.CommandFilter]:
    """Return the shipped filters, with a helper that exists and can be run.

    The filter that oslo.rootwrap adds, which allows any helper, is left out.
    """
    loaded = wrapper.load_filters([str(FILTERS)])
    ours = [each for each in loaded if each.name.startswith("privsep-os_acc")]
    assert len(ours) == 2 * len(CONTEXTS)
    for each in ours:
        each.real_exec = sys.executable
    return ours


def allows(loaded: list[filters.CommandFilter], command: list[str]) -> bool:
    """Return whether rootwrap would run a command."""
    try:
        wrapper.match_filter(loaded, command)
    except (wrapper.NoFilterMatched, wrapper.FilterMatchNotExecutable):
        return False
    return True


def context_of(path: str) -> Context:
    """Return a context by its path."""
    module, _, name = path.rpartition(".")
    found: Context = getattr(importlib.import_module(module), name)
    return found


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "config_files",
    [
        ["/etc/nova/nova.conf"],
        ["/etc/nova/nova.conf", "/etc/nova/nova-compute.conf"],
    ],
    ids=["one file", "two files"],
)
def test_rootwrap_lets_each_context_start_as_privsep_starts_it(
    rootwrap, monkeypatch, context, config_files
):
    assert allows(rootwrap, as_started(monkeypatch, context_of(context), *config_files))


@pytest.mark.parametrize(
    "changed",
    [
        {"--config-file": "/tmp/evil.conf"},
        {"--config-file": "/etc/../tmp/evil.conf"},
        {"--config-file": "/etc/nova/../../tmp/evil.conf"},
        {"--privsep_context": "os_acc.privsep.base.evil"},
        {"--privsep_context": "evil.privsep.base"},
        {"--privsep_context": "os_accXprivsepXbase"},
        {"--privsep_sock_path": "/run/privsep.sock"},
    ],
    ids=lambda changed: " ".join(changed.values()),
)
def test_rootwrap_refuses_anything_else(rootwrap, changed):
    arguments = {
        "--config-file": "/etc/nova/nova.conf",
        "--privsep_context": CONTEXTS[0],
        "--privsep_sock_path": "/tmp/tmpq2_x/privsep.sock",
    }

    def command(values: dict[str, str]) -> list[str]:
        return ["privsep-helper", *(word for pair in values.items() for word in pair)]

    assert allows(rootwrap, command(arguments))
    assert not allows(rootwrap, command(arguments | changed))


#: The configurations that lines for sudo can allow to a helper.
CONFIGURATIONS = ("/etc/nova/nova.conf", "/etc/os-acc/privileged.conf")


def allowed_by_sudo(configuration: str, arguments: str) -> bool:
    """Return whether the lines for sudo with a configuration allow arguments."""
    text = privileges.sudoers(privileges.own_contexts(), configuration=[configuration])
    patterns = re.findall(r"^nova .*(\^.*\$)$", text, re.M)
    assert len(patterns) == len(CONTEXTS)
    return any(re.match(each, arguments) for each in patterns)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_sudoers_lets_each_context_start(monkeypatch, context, configuration):
    command = as_started(monkeypatch, context_of(context), configuration)
    assert allowed_by_sudo(configuration, " ".join(command[1:]))


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_sudoers_takes_no_second_context_after_the_first(configuration):
    words = (
        f"--config-file {configuration} --privsep_context os_acc.privsep.base "
        "--privsep_sock_path /tmp/x --privsep_context evil "
        "--privsep_sock_path /tmp/y/privsep.sock"
    )
    assert not allowed_by_sudo(configuration, words)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_sudoers_takes_no_other_configuration(configuration):
    words = (
        "--config-file /home/nova/nova.conf --privsep_context os_acc.privsep.base "
        "--privsep_sock_path /tmp/tmpq2_x/privsep.sock"
    )
    assert not allowed_by_sudo(configuration, words)


def test_pre_commit_runs_the_tools_of_the_lint_lane():
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    pinned = set(tox["testenv:lint"]["deps"].split())
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"[\w-]+==[\d.]+", hooks)) == pinned
