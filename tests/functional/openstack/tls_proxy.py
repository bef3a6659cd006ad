# SPDX-License-Identifier: Apache-2.0

"""A TLS proxy in front of a service without TLS."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import shutil
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(home: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=127.0.0.1")
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    paths = home / "door.pem", home / "door.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@contextlib.contextmanager
def door(port: int, chain: Path, key: Path) -> Iterator[str]:
    """Yield the address of a proxy of the service at a port of this host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)

    class Passage(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # A client that does not trust the certificate disconnects in the handshake.
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as outside,
                socket.create_connection(("127.0.0.1", port)) as inside,
            ):
                back = threading.Thread(target=_pass, args=(inside, outside))
                back.start()
                _pass(outside, inside)
                back.join()

    class Door(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Door(("127.0.0.1", 0), Passage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        with (
            source.makefile("rb", buffering=0) as here,
            target.makefile("wb", buffering=0) as there,
        ):
            shutil.copyfileobj(here, there)
        target.shutdown(socket.SHUT_WR)
