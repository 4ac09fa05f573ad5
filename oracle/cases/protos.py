"""DecodeProtoV2 and EncodeProto, with a message that has a field of each type."""

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from casekit import Rand, a, case, empty, i32

FILE = """
name: "case.proto" package: "case" syntax: "proto2"
message_type {
  name: "Inner"
  field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "s" number: 2 type: TYPE_STRING label: LABEL_REPEATED }
}
message_type {
  name: "Strict"
  field { name: "must" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
  field { name: "inner" number: 2 type: TYPE_MESSAGE type_name: ".case.Strict" label: LABEL_OPTIONAL }
}
enum_type { name: "Color" value { name: "RED" number: 3 } value { name: "BLUE" number: -7 } }
extension { name: "ext" number: 1000 extendee: ".case.All" type: TYPE_INT64 label: LABEL_OPTIONAL }
"""
TYPES = ["double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "message", "bytes",
         "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"]
DEFAULTS = {"double": "1.5", "float": "-inf", "int64": "-5", "uint64": "18446744073709551615", "int32": "-9", "bool": "true",
            "string": "word", "bytes": "\\001x", "uint32": "7", "enum": "BLUE", "sint32": "-3"}
DTYPE = {"double": "double", "float": "float", "int64": "int64", "uint64": "uint64", "int32": "int32", "fixed64": "uint64",
         "fixed32": "uint32", "bool": "bool", "string": "string", "message": "string", "bytes": "string", "uint32": "uint32",
         "enum": "int32", "sfixed32": "int32", "sfixed64": "int64", "sint32": "int32", "sint64": "int64"}
WIDE = {"float": "double", "int32": "int64", "fixed32": "uint64", "uint32": "uint64", "sfixed32": "int64", "sint32": "int64"}
NAMES = {"message": ".case.Inner", "enum": ".case.Color"}


def descriptors():
    file = text_format.Parse(FILE, descriptor_pb2.FileDescriptorProto())
    whole = file.message_type.add(name="All")
    whole.extension_range.add(start=1000, end=2000)
    for i, kind in enumerate(TYPES):
        number = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
        for k, (prefix, label) in enumerate((("", 1), ("d_", 1), ("r_", 3), ("p_", 3))):
            field = whole.field.add(name=prefix + kind, number=100 * k + i + 1, type=number, label=label)
            if kind in NAMES:
                field.type_name = NAMES[kind]
            if prefix == "d_" and kind in DEFAULTS:
                field.default_value = DEFAULTS[kind]
            if prefix == "p_" and kind not in ("string", "message", "bytes"):
                field.options.packed = True
    return descriptor_pb2.FileDescriptorSet(file=[file])


SET = descriptors()
SOURCE = b"bytes://" + SET.SerializeToString()
POOL = descriptor_pool.DescriptorPool()
POOL.Add(SET.file[0])
All = message_factory.GetMessageClass(POOL.FindMessageTypeByName("case.All"))
Inner = message_factory.GetMessageClass(POOL.FindMessageTypeByName("case.Inner"))

VALUES = {"double": [0.1, -np.inf], "float": [0.5, 3e38], "int64": [-1, 2**62, 5], "uint64": [0, 2**64 - 1],
          "int32": [-1, 2**31 - 1, 300], "fixed64": [7], "fixed32": [2**32 - 1, 1], "bool": [True, False, True],
          "string": ["größe", "", "b"], "bytes": [b"\xff\x00", b""], "uint32": [2**32 - 1, 4], "enum": [-7, 3],
          "sfixed32": [-5, 6], "sfixed64": [-(2**63)], "sint32": [-(2**31), 9], "sint64": [-4, 2**40],
          "message": [Inner(x=-3), Inner(), Inner(s=["a", "b"])]}


def full():
    message = All()
    for kind, values in VALUES.items():
        if kind == "message":
            message.message.CopyFrom(values[0])
            message.r_message.extend(values)
            message.p_message.extend(values)
        else:
            setattr(message, kind, values[0])
            getattr(message, f"r_{kind}").extend(values)
            getattr(message, f"p_{kind}").extend(values)
    return message


def decode(messages, fields, types=None, **how):
    types = types or [DTYPE[f.split("_")[-1]] for f in fields]
    return case("DecodeProtoV2", a("string", messages), field_names=fields, output_types=types,
                **{"message_type": "case.All", "descriptor_source": SOURCE, **how})


def decodes():
    whole = full().SerializeToString()
    every = [prefix + kind for kind in TYPES for prefix in ("", "d_", "r_", "p_")]
    yield decode([whole, b""], every)
    yield decode([[b"", whole], [whole, b""], [whole, whole]], every[::-3])
    wide = [prefix + kind for kind in WIDE for prefix in ("", "d_", "r_", "p_")]
    yield decode([whole, b""], wide, [WIDE[f.split("_")[-1]] for f in wide])
    yield decode([whole], [])
    yield decode([whole], ["int32", "int32"])
    # Packed fields that are written unpacked, and vice versa.
    swapped = All()
    for kind in TYPES:
        for old, new in (("r_", "p_"), ("p_", "r_")):
            if kind not in ("string", "message", "bytes"):
                getattr(swapped, new + kind).extend(VALUES[kind])
    data = swapped.SerializeToString()
    numbers = {f.name: f.number for f in POOL.FindMessageTypeByName("case.All").fields}
    yield decode([data], [p + k for k in TYPES for p in ("r_", "p_")])
    packed = All(p_int32=[5, -6, 7]).SerializeToString()
    tag = bytes([numbers["int32"] << 3 | 2])
    body = packed[2:]
    yield decode([tag + body], ["int32", "d_int32"])
    yield decode([tag + b"\0", tag + b"\1\5"], ["int32"])
    unpacked = All(int32=4).SerializeToString()
    yield decode([unpacked * 3], ["int32"])
    yield case("DecodeProtoV2", a("string", [unpacked + tag + b"\1\5"]), field_names=["int32"], output_types=["int32"],
               message_type="case.All", descriptor_source=SOURCE, fails=True)
    # Unknown fields, wrong wire types, groups.
    for extra in (b"\xf8\x7f\x05", b"\x9b\x06\x08\x01\x9c\x06", b"\x2d\0\0\0\0", b"\x29" + bytes(8)):
        yield decode([extra + whole], ["int32", "r_int64"])
    yield decode([b"\x0a\x03abc"], ["int32"])
    yield decode([All().SerializeToString() + b"\xc0\x3e\x09"], ["case.ext"], ["int64"])
    inner = [Inner(x=5, s=["q"]).SerializeToString(), b""]
    yield case("DecodeProtoV2", a("string", inner), field_names=["s", "x"], output_types=["string", "int64"],
               message_type="case.Inner", descriptor_source=SOURCE)
    for how in ({"sanitize": True}, {"message_format": "text"}):
        given = [whole, b""] if "sanitize" in how else [text_format.MessageToString(full()).encode(), b""]
        yield decode(given, every[::2], **how)
    yield case("DecodeProtoV2", a("string", [text_format.MessageToString(full()).encode()]), field_names=["r_message"],
               output_types=["string"], message_type="case.All", descriptor_source=SOURCE, message_format="text", sanitize=True)
    example = b"\n\x0f\n\r\n\x01k\x12\x08\x1a\x06\n\x04\x01\x02\x03\x04"
    yield case("DecodeProtoV2", a("string", [example]), field_names=["features"], output_types=["string"],
               message_type="tensorflow.Example")


def refused():
    whole = full().SerializeToString()
    good = {"message_type": "case.All", "descriptor_source": SOURCE, "field_names": ["int32"], "output_types": ["int32"],
            "fails": True}
    for changes in ({"message_type": "case.None"}, {"field_names": ["none"]}, {"output_types": ["float"]},
                    {"field_names": ["int32", "bool"]}, {"message_format": "json"}, {"descriptor_source": "nowhere://x"},
                    {"descriptor_source": b"bytes://zz"}, {"field_names": ["message"], "output_types": ["int32"]}):
        yield case("DecodeProtoV2", a("string", [whole]), **{**good, **changes})
    yield case("DecodeProtoV2", empty("string", 0), **good)
    for bad in (whole[:-1], b"\x08", b"\x00", b"\x0c", b"\x0a\x05ab", b"\x0f", b"\x02\x00", b"\x2a\x02\x80\x80",
                b"\xff" * 11, b"\x9b\x06\x08\x01", b"\x28" + b"\xff" * 10):
        yield case("DecodeProtoV2", a("string", [bad]), **good)
    for how, bad in (({"sanitize": True}, b"\x0a"), ({"message_format": "text"}, b"{")):
        yield case("DecodeProtoV2", a("string", [bad]), **good, **how)
    strict = {**good, "message_type": "case.Strict", "field_names": ["must"], "sanitize": True}
    yield case("DecodeProtoV2", a("string", [b""]), **strict)
    yield case("DecodeProtoV2", a("string", [b"\x08\x01\x12\x00"]), **strict)


def column(kind, wide=False):
    values = VALUES[kind]
    if kind == "message":
        return a("string", [v.SerializeToString() for v in values])
    if DTYPE[kind] == "string":
        return a("string", [v.encode() if isinstance(v, str) else v for v in values])
    return a(WIDE[kind] if wide else DTYPE[kind], values)


def encodes():
    for prefix in ("", "r_", "p_"):
        for wide in (False, True):
            kinds = [k for k in TYPES if not wide or k in WIDE]
            values = [column(k, wide)[None, :1 if prefix == "" else None] for k in kinds]
            sizes = np.array([[v.shape[-1] for v in values]], np.int32)
            yield case("EncodeProto", sizes, values, field_names=[prefix + k for k in kinds], message_type="case.All",
                       descriptor_source=SOURCE)
    r = Rand("EncodeProto")
    how = {"field_names": ["p_sint32", "r_string"], "message_type": "case.All", "descriptor_source": SOURCE}
    values = [r("int32", (2, 3, 4)), r("string", (2, 3, 2))]
    sizes = r("int32", (2, 3, 2), 0, 2)
    yield case("EncodeProto", sizes, values, **how)
    yield case("EncodeProto", sizes[:0], [v[:0] for v in values], **how)
    for bad in (sizes[0], sizes[..., :1], sizes + 3):
        yield case("EncodeProto", bad, values, fails=True, **how)
    yield case("EncodeProto", sizes, [values[0], values[1][:1]], fails=True, **how)
    yield case("EncodeProto", sizes, [values[1], values[1]], fails=True, **how)
    yield case("EncodeProto", i32(1, 1), [i32(1), a("string", [b"x"])], fails=True, **how)
    yield case("EncodeProto", sizes, values, fails=True, **{**how, "field_names": ["p_sint32", "none"]})
    yield case("EncodeProto", sizes, values, fails=True, **{**how, "field_names": ["p_sint32"]})
    yield case("EncodeProto", sizes, values, fails=True, **{**how, "message_type": "case.Nothing"})
    strange = [np.array([[3.9, 1e300]]), np.array([[2**40 + 1, -1]], np.int64)]
    yield case("EncodeProto", np.array([[2, 2]], np.int32), strange, field_names=["r_float", "p_uint32"][:1] + ["r_int32"],
               message_type="case.All", descriptor_source=SOURCE)


def cases():
    yield from decodes()
    yield from refused()
    yield from encodes()
