"""Messages between a world and a rank, through a socket.

Each message carries the number of the piece of work it belongs to. An answer to an earlier piece of
work, or one from a process that the rank has forked, is never taken for an answer to this one.

The parent never blocks: a rank may be stopped in the middle of a message, or not read at all. So
the parent's end sends as much as the socket accepts and keeps the rest.
"""

import io
import pickle
import socket
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

from .messages import AnswerReader

HEADER = struct.Struct("!QQ")  # number of the work, bytes that follow
AT_ONCE = 100  # messages that are read before other ranks have their turn


def packed(number: int, message) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(number, len(data)) + data


def arriving(connection: socket.socket, load: Callable) -> Iterator[tuple[int, object] | None]:
    """The messages that come, with their numbers, and None whenever the rest of one is still on its
    way. Raises EOFError at the end."""
    while True:
        number, nbytes = HEADER.unpack((yield from _whole(connection, HEADER.size)))
        yield number, load(io.BytesIO((yield from _whole(connection, nbytes))))


def _whole(connection: socket.socket, nbytes: int) -> Generator[None, None, bytearray]:
    data = bytearray(nbytes)
    missing = memoryview(data)
    while missing:
        with suppress(BlockingIOError):
            if not (got := connection.recv_into(missing)):
                raise EOFError
            missing = missing[got:]
        if missing:
            yield
    return data


class RanksEnd:
    """The rank's end, which blocks: a rank has nothing else to do. Only the listening thread
    reads."""

    def __init__(self, connection: socket.socket):
        self.socket, self.arriving = connection, arriving(connection, pickle.load)

    def send(self, number: int, message):
        self.socket.sendall(packed(number, message))

    def receive(self) -> tuple[int, object]:
        return next(filter(None, self.arriving))


class ParentsEnd:
    """The parent's end, which never blocks. `closed` is true when the other end is closed."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.socket, self.closed = connection, False
        self.arriving = arriving(connection, lambda file: AnswerReader(file).load())
        self.waiting: list[memoryview] = []  # to be sent

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self):
        self.waiting.clear()
        self.socket.close()

    def send(self, frame: bytes):
        self.waiting.append(memoryview(frame))
        self.write()

    def write(self):
        """Send as much as the other end accepts now."""
        try:
            while self.waiting:
                sent = self.socket.send(self.waiting[0])
                self.waiting[0] = self.waiting[0][sent:]
                if not self.waiting[0]:
                    self.waiting.pop(0)
        except BlockingIOError:
            pass
        except OSError:  # the rank has died, which will be noticed
            self.waiting.clear()

    def read(self) -> list[tuple[int, object]]:
        """Messages that have arrived completely, some of them where a rank sends without end. Of
        one that is under way it takes what is there, once: other ranks have their turn."""
        messages = []
        try:
            while len(messages) < AT_ONCE and (message := next(self.arriving)):
                messages.append(message)
        except Exception:  # the end, or bytes that a rank has made up: nothing more is read from it
            self.closed = True
        return messages
