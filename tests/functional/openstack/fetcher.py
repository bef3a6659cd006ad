# SPDX-License-Identifier: Apache-2.0

"""A process that fetches an image: python -m ... <options> <state> <id> <threads>.

It prints "ready", waits for a line, and prints for each thread the sha512 of its
image, or the name of the error.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from concurrent import futures
from pathlib import Path

from os_acc import exception
from os_acc.bitstreams import library
from os_acc.store.locks import Locks
from tests.functional.openstack.cloud import read


def main() -> None:
    options, state, image_id, threads = sys.argv[1:]
    images = library.build(read(Path(options)), state, Locks(f"{state}/locks"))
    deadline = time.monotonic() + 300.0

    def fetched(_: int) -> str:
        try:
            image = images.about(image_id, deadline)
            with images.fetched(image, deadline) as bitstream:
                return hashlib.sha512(Path(bitstream.path).read_bytes()).hexdigest()
        except exception.OsAccError as error:
            return type(error).__name__

    print("ready", flush=True)
    sys.stdin.readline()
    with futures.ThreadPoolExecutor(int(threads)) as pool:
        print(json.dumps(list(pool.map(fetched, range(int(threads))))))


if __name__ == "__main__":
    main()
