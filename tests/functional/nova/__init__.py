# SPDX-License-Identifier: Apache-2.0

"""The library against Nova itself, in one process."""
