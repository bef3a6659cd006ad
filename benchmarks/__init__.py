# SPDX-License-Identifier: Apache-2.0

"""What the library costs, beside the least that the same work can cost."""
