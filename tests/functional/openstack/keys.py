# SPDX-License-Identifier: Apache-2.0

"""A key manager for Glance: certificates in a directory, not in Barbican.

Glance loads it by its name, through castellan, as it would load Barbican's.
"""

from __future__ import annotations

import os
from pathlib import Path

from castellan.common import exception
from castellan.common.objects.x_509 import X509
from castellan.key_manager.key_manager import Context
from castellan.key_manager.not_implemented_key_manager import NotImplementedKeyManager
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

#: The variable with the directory of the certificates, ``<uuid>.pem``.
PLACE = "TESTED_CERTIFICATES"
NAME = f"{__name__}.Directory"


class Directory(NotImplementedKeyManager):
    """Returns certificates, and supports nothing else."""

    def get(
        self,
        context: Context | None,
        managed_object_id: str,
        metadata_only: bool = False,
    ) -> X509:
        file = Path(os.environ[PLACE], f"{managed_object_id}.pem")
        try:
            found = x509.load_pem_x509_certificate(file.read_bytes())
        except FileNotFoundError as error:
            raise exception.ManagedObjectNotFoundError(
                uuid=managed_object_id
            ) from error
        return X509(found.public_bytes(Encoding.DER))
