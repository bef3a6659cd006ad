# SPDX-License-Identifier: Apache-2.0

"""A program that simulates xbmgmt and xbutil.

It accepts only the arguments that os_acc passes, and prints XRT's messages:
https://github.com/Xilinx/XRT/pull/5216 (xbmgmt: downloaded, not permitted) and
/pull/4083 (xbutil). It changes the card as the drivers do: xclmgmt stores the
xclbin without exposing it, and xocl takes over the xclbin of xclmgmt
(icap.c of XRT, __icap_peer_xclbin_download()).
"""

import hashlib
import json
import os
import re
import sys
import time
import uuid

BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
FILE = re.compile(r"/proc/self/fd/[0-9]+", re.ASCII)
DRIVERS = {"xbmgmt": "xclmgmt", "xbutil": "xocl", "xrt-smi": "xocl"}
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> int:
    name = os.path.basename(__file__)
    with open(f"{HERE}/settings.json") as file:
        settings = json.load(file)
    behaviour = settings.get(name, "works")
    if not well_formed(sys.argv[1:]):
        note(name, "bad arguments", sys.argv[1:])
        print("ERROR: Missing flash operation.  No action taken.")
        return 1
    device, path = sys.argv[3], sys.argv[5]
    place = f"{settings['root']}/sys/bus/pci/devices/{device}"
    if os.path.basename(os.readlink(f"{place}/driver")) != DRIVERS[name]:
        note(name, "wrong function", sys.argv[1:])
        print(f"ERROR: Could not open device {device}")
        return 1
    with open(path, "rb") as file:
        content = file.read()
    note(name, behaviour, sys.argv[1:5], content)
    print(f"Downloading xclbin on device [{device}]...", flush=True)
    if behaviour == "hangs":
        while not os.path.exists(f"{HERE}/go"):
            time.sleep(0.01)
    if behaviour == "refuses":
        print("ERROR: Failed to download xclbin: Operation not permitted")
        return 1
    if behaviour == "babbles":
        sys.stdout.write("\x1b[31m" + "x" * 100_000 + "\n" * 5000 + "ERROR: \x07bad\n")
        return 1
    if behaviour == "dies":
        os.kill(os.getpid(), 9)
    if behaviour == "lies":
        return 0
    loaded = str(uuid.UUID(bytes=content[416:432]))
    if name == "xbmgmt":
        put(f"{HERE}/hardware", loaded)
        print("INFO: Successfully downloaded xclbin \n")
    else:
        with open(f"{HERE}/hardware") as file:
            note("xocl", "taken over" if file.read() == loaded else "asked anew", [])
        put(os.path.realpath(place) + "/xclbinuuid", f"{loaded}\n")
        print(f"INFO: xbutil2 program succeeded on {device}")
    return 0


def well_formed(arguments: list[str]) -> bool:
    return (
        len(arguments) == 5
        and [arguments[0], arguments[1], arguments[3]]
        == ["program", "--device", "--user"]
        and BDF.fullmatch(arguments[2]) is not None
        and FILE.fullmatch(arguments[4]) is not None
    )


def put(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def note(name: str, what: str, arguments: list[str], content: bytes = b"") -> None:
    """Append the circumstances of this run to the log."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t") for line in file if ":\t" in line)
    files = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    entry = {
        "tool": name,
        "what": what,
        "arguments": arguments,
        "digest": hashlib.sha512(content).hexdigest(),
        "environment": sorted(os.environ),
        "capabilities": status["CapPrm"],
        "no_new_privs": status["NoNewPrivs"],
        "directory": os.getcwd(),
        "files": sorted({os.readlink(fd) for fd in files if os.path.lexists(fd)}),
    }
    with open(f"{HERE}/log", "a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main())
