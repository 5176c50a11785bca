"""Rehearsed hosts: one machine plays two, joined by a link of a speed that you choose.

    with two_hosts(megabits_per_second=1000) as hosts, ranks(4, hosts=hosts) as world:
        world.run(...)                      # ranks 0 and 1 on the first host, 2 and 3 on the second

A host is a network namespace: it has its own interfaces and addresses, and reaches only the other
host. The link is a pair of virtual Ethernet devices; a token bucket lets so many bits through a
second, each way. Ranks of one host talk at full speed. An ordinary user's rights are enough if the
system allows user namespaces. Nothing is left when the `with` or this process ends: a namespace
ends with the last process in it.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

# a network reserved for documentation, unused elsewhere (RFC 5737)
ADDRESSES = ("192.0.2.1/24", "192.0.2.2/24")
INTERFACES = ("near", "far")
# of full speed may pass at once, so that the timer's grain does not slow the link down
BUCKET_SECONDS = 0.01
QUEUE_SECONDS = 0.4  # of waiting, then packets are dropped, as in a switch
COMMAND_SECONDS = 20


class LinksUnavailable(OSError):
    """This system cannot rehearse hosts: one sentence."""

    def __str__(self):  # not in __init__, which a copy calls again
        return f"slow links cannot be rehearsed here: {self.args[0]}."


class Host(NamedTuple):
    """A network of its own with one link."""

    interface: str = ""  # this host's end of the link; none is the loopback
    namespaces: tuple[str, ...] = ()  # the kernel's files that a process opens to enter the host


@contextmanager
def two_hosts(megabits_per_second: float) -> Iterator[tuple[Host, Host]]:
    """Two hosts and the link between them. Raises LinksUnavailable if this system does not allow
    them."""
    if not megabits_per_second > 0:
        raise ValueError(
            f"megabits_per_second = {megabits_per_second!r}: a link's speed is above 0."
        )
    missing = [
        program for program in ("unshare", "nsenter", "ip", "tc") if shutil.which(program) is None
    ]
    if missing:
        raise LinksUnavailable(
            f"the programs {', '.join(missing)} are not installed (on Debian and Ubuntu: apt-get"
            " install iproute2 util-linux)"
        )
    kinds = ("net",) if os.geteuid() == 0 else ("user", "net")
    flags = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    with ExitStack() as stack:
        near = stack.enter_context(holding(["unshare", *flags]))
        enter_near = ["nsenter", f"--target={near}", *(f"--{kind}" for kind in kinds)]
        enter_near += ["--preserve-credentials"] * ("user" in kinds)
        far = stack.enter_context(holding([*enter_near, "unshare", "--net"]))
        enter_far = [part.replace(str(near), str(far)) for part in enter_near]
        one, other = INTERFACES
        run_command(enter_near, f"ip link add {one} type veth peer name {other} netns {far}")
        for enter_host, interface, address in zip((enter_near, enter_far), INTERFACES, ADDRESSES):
            run_command(enter_host, f"ip address add {address} dev {interface}")
            run_command(enter_host, f"ip link set {interface} up")
            run_command(enter_host, "ip link set lo up")
            bits = megabits_per_second * 1e6
            run_command(
                enter_host,
                f"tc qdisc add dev {interface} root tbf rate {bits:.0f}bit"
                f" burst {max(16_000, bits / 8 * BUCKET_SECONDS):.0f}"
                f" latency {QUEUE_SECONDS * 1000:.0f}ms",
            )
        yield tuple(
            Host(interface, tuple(f"/proc/{process}/ns/{kind}" for kind in kinds))
            for process, interface in zip((near, far), INTERFACES)
        )


@contextmanager
def holding(command: list[str]) -> Iterator[int]:
    """The id of a process that holds a namespace open and does nothing else. It ends when its input
    closes, so at the latest with this process."""
    process = subprocess.Popen(
        [*command, "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        if process.stdout.readline() != "ready\n":
            raise _unavailable(process.stderr.read())
        try:
            yield process.pid
        finally:
            process.stdin.close()


def run_command(enter_host: list[str], command: str):
    whole = [*enter_host, *command.split()]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode:
        raise _unavailable(done.stderr)


def _unavailable(said: str) -> LinksUnavailable:
    reason = (said.strip().splitlines() or ["no reason given"])[-1]
    return LinksUnavailable(f"this system does not let us make network namespaces ({reason})")


def enter_namespaces(namespaces: tuple[str, ...]):
    """Move this process, which must have one thread, into a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in namespaces:
        descriptor = os.open(path, os.O_RDONLY)
        if libc.setns(descriptor, 0):
            raise OSError(
                ctypes.get_errno(),
                f"a rank could not enter its host: {os.strerror(ctypes.get_errno())}",
            )
        os.close(descriptor)
    if len(namespaces) > 1:
        # PR_SET_DUMPABLE: entering a user namespace removes the right to open the process's own
        # files in /proc
        libc.prctl(4, 1)
