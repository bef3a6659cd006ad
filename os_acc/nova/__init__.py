# SPDX-License-Identifier: Apache-2.0

"""Modules that Nova loads; the only package that imports Nova."""
