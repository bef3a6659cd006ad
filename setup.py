# SPDX-License-Identifier: Apache-2.0

import os
from pathlib import Path

import setuptools

# pbr takes the version from git. A tree that came as an archive has none, and
# must install all the same.
if not any((Path(__file__).parent / name).exists() for name in (".git", "PKG-INFO")):
    os.environ.setdefault("PBR_VERSION", "0.0.0")

setuptools.setup(pbr=True)
