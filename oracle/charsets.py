"""Writes crates/ops/string/src/single_byte.txt: encodings of one byte per character, as TensorFlow decodes them.

Usage: python oracle/charsets.py

A line is the names of an encoding, without punctuation and in lower case, a tab, and the characters of the bytes from
0 to 255. Controls and blanks are written \\xNN; U+FFFD is a byte without a character.
"""

import os
import re
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

TARGET = Path(__file__).resolve().parent.parent / "crates/ops/string/src/single_byte.txt"
# Numbers of IBM's code pages, in some of the forms that ICU knows.
PAGES = [37, 273, 277, 278, 280, 284, 285, 290, 297, 420, 424, 437, 500, 720, 737, 775, 803, 813, 838, 850, 851, 852, 855,
         856, 857, 858, 860, 861, 862, 863, 864, 865, 868, 869, 870, 871, 875, 878, 916, 918, 921, 922, 923, 1006, 1025,
         1026, 1047, 1051, 1089, 1097, 1098, 1112, 1122, 1123, 1124, 1125, 1131, *range(1140, 1150)]
FORMS = ["ibm-{}", "cp{}", "{}", "windows-{}", "x-cp{}", "csIBM{}", "CCSID{:05d}", "cpibm{}"]
WORDS = """csPC8CodePage437 csPC850Multilingual csPCp852 csPC775Baltic csPC862LatinHebrew DOS-720 dos-862 cp-gr cp-is cp-ar
    pc-multilingual-850+euro hp-roman8 roman8 r8 csHPRoman8 x-roman8 x-mac-greek macgr x-mac-turkish mactr x-mac-ce macce
    maccentraleurope x-mac-centraleurroman iso-8859-11 thai8 iso-8859-8-I iso-8859-6-E windows-20866 windows-28597
    ebcdic-xml-us ebcdic-cp-us ebcdic-cp-ca ebcdic-cp-wt ebcdic-cp-nl ebcdic-cp-dk ebcdic-cp-no ebcdic-cp-fi ebcdic-cp-se
    ebcdic-cp-it ebcdic-cp-es ebcdic-cp-gb ebcdic-cp-fr ebcdic-cp-ar1 ebcdic-cp-he ebcdic-cp-be ebcdic-cp-ch ebcdic-cp-is
    ebcdic-cp-roece ebcdic-cp-yu ebcdic-de ebcdic-gb ebcdic-is ebcdic-sv ebcdic-dk ebcdic-us-37+euro ebcdic-de-273+euro
    ebcdic-dk-277+euro ebcdic-fi-278+euro ebcdic-it-280+euro ebcdic-es-284+euro ebcdic-gb-285+euro ebcdic-fr-297+euro
    ebcdic-international-500+euro ebcdic-is-871+euro""".split()


def characters(name):
    """Returns the characters of all bytes, or None if the encoding is unknown or has longer characters."""
    each = [bytes([b]) for b in range(256)]
    try:
        out = tf.raw_ops.UnicodeDecode(input=each, input_encoding=name, errors="replace", replacement_char=0xFFFD)
    except tf.errors.InvalidArgumentError:
        return None
    return tuple(out.char_values.numpy()) if out.row_splits.numpy().tolist() == list(range(257)) else None


def short(name):
    name = re.sub("[^a-z0-9]", "", name.lower())
    return re.sub("(?<![0-9])0+(?=[0-9])", "", name)


def escaped(c):
    return f"\\x{c:02x}" if c < 0x21 or 0x7F <= c <= 0xA0 or c == 0x5C else chr(c)


def main():
    found = {}
    for name in [form.format(page) for page in PAGES for form in FORMS] + WORDS:
        if table := characters(name):
            found.setdefault(table, {})[short(name)] = None
    lines = [" ".join(names) + "\t" + "".join(map(escaped, table)) for table, names in found.items()]
    TARGET.write_text("\n".join(lines) + "\n")
    print(len(lines), "encodings,", TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
