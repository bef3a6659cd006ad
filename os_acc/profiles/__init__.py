# SPDX-License-Identifier: Apache-2.0

"""Device profiles: sources, parsing, and expansion in flavors."""
