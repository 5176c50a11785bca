"""The text of a page that Chromium has printed to PDF, sign by sign: what a reader has on paper. It
reads what Chromium writes and no other PDF."""

import re
import zlib


def pdf_text(data: bytes) -> str:
    """All signs of a PDF, in the order in which they are drawn; lines do not end."""
    objects = dict(re.findall(rb"(\d+) 0 obj\n(.*?)endobj", data, re.DOTALL))
    signs, text = {}, []
    for page in objects.values():
        if not re.search(rb"/Type\s*/Page\b", page):
            continue
        fonts = dict(re.findall(rb"/(F\d+) (\d+) 0 R", page))
        drawn = stream(objects[re.search(rb"/Contents (\d+) 0 R", page)[1]])
        for font, glyphs in re.findall(rb"/(F\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)> Tj", drawn):
            if font:
                number = fonts[font]
                if number not in signs:
                    signs[number] = signs_of(objects, objects[number])
                known = signs[number]
            else:
                codes = glyphs.decode().upper()
                wide = len(next(iter(known), "00"))  # of one byte or of two
                text += [known.get(codes[k : k + wide], "") for k in range(0, len(codes), wide)]
    return "".join(text)


def stream(body: bytes) -> bytes:
    content = re.search(rb"stream\r?\n(.*)\nendstream", body, re.DOTALL)[1]
    return zlib.decompress(content) if b"FlateDecode" in body else content


def signs_of(objects: dict[bytes, bytes], font: bytes) -> dict[str, str]:
    """Glyph of a font -> its sign, from the table that the font carries for whoever copies text."""
    table = re.search(rb"/ToUnicode (\d+) 0 R", font)
    if not table:
        return {}
    found, lines = {}, stream(objects[table[1]]).decode("latin-1")
    for block in re.findall(r"beginbfchar(.*?)endbfchar", lines, re.DOTALL):
        for code, sign in re.findall(r"<(\w+)> <(\w+)>", block):
            found[code.upper()] = bytes.fromhex(sign).decode("utf-16-be")
    for block in re.findall(r"beginbfrange(.*?)endbfrange", lines, re.DOTALL):
        for first, last, sign in re.findall(r"<(\w+)> <(\w+)> <(\w+)>", block):
            start = ord(bytes.fromhex(sign).decode("utf-16-be")[-1])
            for k in range(int(first, 16), int(last, 16) + 1):
                found[f"{k:0{len(first)}X}"] = chr(start + k - int(first, 16))
    return found
