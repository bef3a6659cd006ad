# SPDX-License-Identifier: Apache-2.0

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext"))

project = "os_acc"
copyright = "the os_acc authors"
version = release = metadata.version("os-acc")

extensions = [
    "figures",
    "long_names",
    "unreleased",
    "cliff.sphinxext",
    "openstackdocstheme",
    "oslo_config.sphinxconfiggen",
    "oslo_config.sphinxext",
    "reno.sphinxext",
    "sphinx.ext.autodoc",
]

html_theme = "openstackdocs"
html_theme_options = {"display_badge": False}
html_static_path = ["static"]
html_css_files = ["tables.css"]
# A clone has no tags and may have no remote: the theme's own guesses at name
# and version would fail there.
openstackdocs_auto_name = False
openstackdocs_auto_version = False

config_generator_config_file = "../../etc/os-acc-config-generator.conf"
sample_config_basename = "_static/os-acc"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

man_pages = [("reference/os-acc", "os-acc", "accelerators of a compute node", [], 1)]
# Each command that prints a list or an object has these; the page says so once.
autoprogram_cliff_ignored = [
    "--help",
    *("--format", "--column", "--quote", "--noindent", "--variable", "--prefix"),
    *("--max-width", "--fit-width", "--print-empty"),
    *("--sort-column", "--sort-ascending", "--sort-descending"),
]
# A help text has options: no dash instead of --.
smartquotes_action = "qe"
