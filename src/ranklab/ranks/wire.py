"""Messages between a world and a rank, through a socket.

Each message carries the number of the piece of work it belongs to. An answer to an earlier piece of
work, or one from a process that the rank has forked, is never taken for an answer to this one.

The parent never blocks: a rank may be stopped in the middle of a message, or not read at all. So
the parent's end sends as much as the socket accepts and keeps the rest.
"""

import io
import os
import pickle
import socket
import struct

from .messages import AnswerReader

HEADER = struct.Struct("!QQ")  # number of the work, bytes that follow
MOST_AT_ONCE = 64 << 20  # bytes after which the parent serves other ranks again


def packed(number: int, message) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(number, len(data)) + data


class RanksEnd:
    """The rank's end, which blocks: a rank has nothing else to do. Only the listening thread
    reads."""

    def __init__(self, fd: int):
        self.fd = fd
        os.set_inheritable(fd, False)  # a program that replaces the rank by exec does not answer

    def send(self, number: int, message):
        view = memoryview(packed(number, message))
        while view:
            view = view[os.write(self.fd, view) :]

    def receive(self) -> tuple[int, object]:
        number, nbytes = HEADER.unpack(self._read(HEADER.size))
        return number, pickle.loads(self._read(nbytes))

    def _read(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view = memoryview(data)
        while view:
            if not (got := os.readv(self.fd, [view])):
                raise EOFError
            view = view[got:]
        return data


class ParentsEnd:
    """The parent's end, which never blocks. `closed` is true when the other end is closed."""

    def __init__(self, fd: int):
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.waiting: list[memoryview] = []  # to be sent
        self.closed = False
        self._expect(HEADER.size)
        self.header: tuple[int, int] | None = None

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
        """The messages that have arrived completely."""
        messages, left = [], MOST_AT_ONCE
        while left > 0 and not self.closed:
            try:
                got = self.socket.recv_into(self.missing)
            except BlockingIOError:
                break
            except OSError:
                got = 0
            self.closed = not got
            left -= got
            self.missing = self.missing[got:]
            if self.missing or self.closed:
                continue
            try:
                if self.header is None:
                    self.header = HEADER.unpack(self.data)
                    self._expect(self.header[1])
                else:
                    answer = AnswerReader(io.BytesIO(self.data)).load()
                    messages.append((self.header[0], answer))
                    self.header = None
                    self._expect(HEADER.size)
            except Exception:  # bytes that a rank has made up: nothing more is read from it
                self.closed = True
        return messages

    def _expect(self, nbytes: int):
        self.data = bytearray(nbytes)
        self.missing = memoryview(self.data)
