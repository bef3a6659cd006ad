# SPDX-License-Identifier: Apache-2.0

"""Every option is in the sample configuration, and has a help text."""

import io
import re
from pathlib import Path

from oslo_config import cfg, generator

from tests.unit.test_packaging import entry_points

SAMPLE = Path(__file__).parents[2] / "etc/os-acc-config-generator.conf"


def all_options() -> list[tuple[str, cfg.Opt]]:
    """Return every configuration option of the library, as (group, option)."""
    return [
        (getattr(group, "name", group), option)
        for point in entry_points("oslo.config.opts")
        for group, options in point.load()()
        for option in options
    ]


def test_every_option_is_in_the_sample():
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf([], default_config_files=[str(SAMPLE)])
    sample = io.StringIO()
    generator.generate(conf, sample)
    section, found = "", set()
    for line in sample.getvalue().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif match := re.match(r"#(\w+) =", line):
            found.add((section, match[1]))
    wanted = {(group, option.dest) for group, option in all_options()}
    assert ("os_acc", "device_spec") in wanted
    assert wanted <= found


def test_every_option_is_explained():
    assert [option.name for _, option in all_options() if not option.help] == []
