//! Made-up programs that are wrong, or larger than they look.

use ferroflow_stablehlo::{Attr, Module, Type};

/// The parts of a program whose function `main` holds one constant.
struct Program {
    version: u8,
    dialect: &'static str,
    /// The encoded attributes of VHLO from number 8 on; number 8 is the value of the constant.
    attrs: Vec<Vec<u8>>,
    /// The encoded types of VHLO from number 1 on; number 1 is the type of the constant.
    types: Vec<Vec<u8>>,
    /// The encoded ops before the constant, with their number.
    before: (u64, Vec<u8>),
    /// How many values the function claims to define.
    values: u64,
}

/// Returns a program with attributes, whose constant is an index.
fn program(attrs: Vec<Vec<u8>>) -> Program {
    Program {
        version: 1,
        dialect: "vhlo",
        attrs,
        types: vec![vec![9]],
        before: (0, Vec::new()),
        values: 1,
    }
}

/// Returns a program whose constant is a tensor of f32, which is type 2.
fn constant(dims: &[i64], bytes: &[u8]) -> Program {
    let mut ty = ints(&[20, dims.len() as u64]);
    for d in dims {
        ty.extend(int(((d << 1) ^ (d >> 63)) as u64));
    }
    ty.extend(int(2));
    let attr = [ints(&[15, 1, bytes.len() as u64]), bytes.to_vec()].concat();
    Program {
        types: vec![ty, ints(&[4])],
        ..program(vec![attr])
    }
}

/// Encodes an integer, in its shortest or longest form.
fn int(n: u64) -> Vec<u8> {
    match n {
        0..128 => vec![(n as u8) << 1 | 1],
        _ => [&[0][..], &n.to_le_bytes()].concat(),
    }
}

fn ints(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|n| int(*n)).collect()
}

fn section(number: u8, content: Vec<u8>) -> Vec<u8> {
    [vec![number], int(content.len() as u64), content].concat()
}

impl Program {
    fn bytes(&self) -> Vec<u8> {
        let strings = [
            "builtin",
            self.dialect,
            "module",
            "func_v1",
            "return_v1",
            "constant_v1",
            "sym_name",
            "function_type",
            "value",
            "main",
        ];
        let lengths = strings.iter().rev().map(|s| s.len() as u64 + 1);
        let lengths: Vec<u64> = [strings.len() as u64].into_iter().chain(lengths).collect();
        let texts = strings.iter().flat_map(|s| [s.as_bytes(), &[0]].concat());
        let mut bytes = b"ML\xefR".to_vec();
        bytes.extend(int(self.version.into()));
        bytes.extend(b"test\0");
        bytes.extend(section(
            0,
            ints(&lengths).into_iter().chain(texts).collect(),
        ));
        // Op names: 0 module, 1 func, 2 return, 3 constant.
        let names = ints(&[2, 0, 1 << 1, 0, 1, 2, 1, 3, 3, 4, 5]);
        bytes.extend(section(1, names));
        // Builtin attributes: 0 the location, 1 to 3 names, 4 and 5 the attributes of the ops.
        let builtin = [
            ints(&[15]),
            ints(&[2, 6]),
            ints(&[2, 7]),
            ints(&[2, 8]),
            ints(&[1, 2, 1, 6, 2, 7]),
            ints(&[1, 1, 3, 8]),
        ];
        // VHLO's: 6 the name, 7 the type of the function, which is type 0.
        let mut vhlo = vec![ints(&[14, 9]), ints(&[17, 0])];
        vhlo.extend(self.attrs.iter().cloned());
        let mut types = vec![ints(&[8, 0, 0])];
        types.extend(self.types.iter().cloned());
        let groups = [(0, &builtin[..]), (1, &vhlo[..]), (1, &types[..])];
        let mut offsets = ints(&[(builtin.len() + vhlo.len()) as u64, types.len() as u64]);
        for (dialect, entries) in groups {
            offsets.extend(ints(&[dialect, entries.len() as u64]));
            offsets.extend(entries.iter().flat_map(|e| int((e.len() as u64) << 1 | 1)));
        }
        bytes.extend(section(2, groups.map(|(_, e)| e.concat()).concat()));
        bytes.extend(section(3, offsets));
        bytes.extend(section(4, self.ops()));
        bytes
    }

    fn ops(&self) -> Vec<u8> {
        let (n, before) = &self.before;
        let mut ops = [
            ints(&[1 << 1, 0]),
            vec![0x10],
            ints(&[0, 1 << 1 | 1, 1, 0, 1 << 1]),
        ]
        .concat();
        ops.extend(
            [
                int(1),
                vec![0x11],
                ints(&[0, 4, 1 << 1 | 1, 1, self.values, (n + 2) << 1]),
            ]
            .concat(),
        );
        ops.extend(before);
        ops.extend([int(3), vec![0x03], ints(&[0, 5, 1, 1])].concat());
        ops.extend([int(2), vec![0x00], int(0)].concat());
        ops
    }
}

/// Reads a program, whose error has to contain a text.
fn check(name: &str, bytes: &[u8], error: &str) {
    match Module::read(bytes) {
        Ok(module) => panic!("{name} was read:\n{module}"),
        Err(e) => assert!(e.to_string().contains(error), "{name}: {e}"),
    }
}

#[test]
fn a_good_program_is_read() {
    let module =
        Module::read(&constant(&[2, 3], &1.5f32.to_le_bytes()).bytes()).expect("a program");
    let text = "func main() -> () {\n  %0: f32[2,3] = constant() {value = f32[2,3]<1.5 1.5 1.5 1.5 \
                1.5 1.5>}\n  return()\n}\n";
    assert_eq!(module.to_string(), text);
    let constant = &module.functions[0].body.ops[0];
    let Some(Attr::Tensor(value)) = constant.attr("value") else {
        panic!("{constant:?}");
    };
    assert_eq!(value.slice::<f32>().expect("floats"), [1.5; 6]);
    assert!(matches!(&constant.results[0].1, Type::Tensor(ty) if ty.dims == [Some(2), Some(3)]));
}

#[test]
fn wrong_programs_are_refused() {
    let f32_0 = 0f32.to_le_bytes();
    let doubling = |code: u64, first: u64, last: Vec<u8>| -> Vec<Vec<u8>> {
        let pairs = (1..31).map(|i| ints(&[code, 2, first + i, first + i]));
        pairs.chain([last]).collect()
    };
    let nested_op = [int(3), vec![0x10], ints(&[0, 1 << 1, 1, 0, 1 << 1])].concat();
    let long = [ints(&[1, 50_000]), ints(&[10; 50_000])].concat();
    let rows: Vec<(&str, Program, &str)> = vec![
        (
            "a huge splat",
            constant(&[1 << 40], &f32_0),
            "RESOURCE_EXHAUSTED",
        ),
        (
            "too many elements",
            constant(&[1 << 40, 1 << 40], &f32_0),
            "is too large",
        ),
        (
            "a negative dimension",
            constant(&[-5], &f32_0),
            "the dimension -5",
        ),
        (
            "a dynamic constant",
            constant(&[i64::MIN], &f32_0),
            "has no size",
        ),
        (
            "missing elements",
            constant(&[3], &[0; 8]),
            "f32[3] has 8 bytes",
        ),
        (
            "an attribute in itself",
            program(vec![ints(&[1, 1, 8])]),
            "nested 33 deep",
        ),
        (
            "a type in itself",
            Program {
                types: vec![ints(&[23, 1, 1])],
                ..program(vec![ints(&[2, 1])])
            },
            "nested 33 deep",
        ),
        (
            "doubled arrays",
            program(doubling(1, 8, ints(&[2, 1]))),
            "RESOURCE_EXHAUSTED",
        ),
        (
            "doubled tuples",
            Program {
                types: doubling(23, 1, ints(&[22])),
                ..program(vec![ints(&[2, 1])])
            },
            "RESOURCE_EXHAUSTED",
        ),
        (
            "a long array many times",
            program(vec![
                ints(&[&[1, 1000][..], &[9; 1000]].concat()),
                long,
                ints(&[2, 1]),
            ]),
            "RESOURCE_EXHAUSTED",
        ),
        (
            "an unknown value",
            program(vec![ints(&[3, 6])]),
            "6 of enumeration 3 is unknown",
        ),
        (
            "an unknown attribute",
            program(vec![ints(&[99])]),
            "attribute 99 of VHLO is unknown",
        ),
        (
            "an unfinished attribute",
            program(vec![ints(&[2, 1, 0])]),
            "1 bytes remain",
        ),
        (
            "deep regions",
            Program {
                before: (1, nested_op.repeat(100_000)),
                ..program(vec![ints(&[2, 1])])
            },
            "nested 101 deep",
        ),
        (
            "a value before its definition",
            Program {
                before: (1, [int(3), vec![0x04], ints(&[0, 1, 0])].concat()),
                ..program(vec![ints(&[2, 1])])
            },
            "value 0 is used but not defined before",
        ),
        (
            "too few values",
            Program {
                values: 0,
                ..program(vec![ints(&[2, 1])])
            },
            "more values than it claims",
        ),
        (
            "another dialect",
            Program {
                dialect: "sdy",
                ..program(vec![ints(&[2, 1])])
            },
            "the op 'sdy.func' where only functions can be read",
        ),
        (
            "a new version",
            Program {
                version: 7,
                ..program(vec![ints(&[2, 1])])
            },
            "version 7; the newest that can be read is 6",
        ),
    ];
    for (name, program, error) in rows {
        check(name, &program.bytes(), error);
    }
}

#[test]
fn other_files_are_refused() {
    let rows: &[(&[u8], &str)] = &[
        (b"", "not MLIR bytecode"),
        (
            b"\x7fELF\xff",
            "not MLIR bytecode: it starts with [7f, 45, 4c, 46]",
        ),
        (b"  module @jit_f {}", "is text; export it as MLIR bytecode"),
        (b"ML\xefR", "1 bytes are needed where 0 are left"),
        (b"ML\xefR\x0d", "text does not end"),
        (b"ML\xefR\x0dx\0", "no section of"),
    ];
    for (bytes, error) in rows {
        check("a file", bytes, error);
    }
}

#[test]
fn attributes_have_the_expected_text() {
    // The zigzag form of a positive integer.
    let wide = |bits: u64| int(bits << 1);
    let rows: Vec<(u64, u64, Vec<u8>, &str)> = vec![
        (0, 9, vec![1], "true"),
        (9, 9, wide(7), "7"),
        (10, 9, vec![0x0E], "-2"),
        (11, 9, vec![0xFE], "-2"),
        (12, 9, wide(0xFFFF), "-1"),
        (13, 9, wide(0xFFFF_FFFE), "-2"),
        (14, 9, int(3), "-2"),
        (16, 9, vec![0xFE], "254"),
        (18, 9, wide(0xFFFF_FFFE), "4294967294"),
        (2, 8, wide(0xC049), "-3.140625"),
        (3, 8, wide(0x3C01), "1.0009765625"),
        (3, 8, wide(0x8001), "-5.960464477539063e-8"),
        (3, 8, wide(0x7C00), "inf"),
        (4, 8, wide(1), "1.401298464324817e-45"),
        (4, 8, wide(0x7FC0_0000), "NaN"),
        (5, 8, int(f64::to_bits(0.1) << 1), "0.1"),
        (6, 8, vec![0x38], "0x38 : f8E4M3FN"),
        (7, 8, vec![0xBE], "-1.5"),
    ];
    for (ty, code, value, text) in rows {
        let made = Program {
            types: vec![int(ty)],
            ..program(vec![[ints(&[code, 1]), value].concat()])
        };
        let module = Module::read(&made.bytes()).unwrap_or_else(|e| panic!("{ty}: {e}"));
        let value = module.functions[0].body.ops[0].attr("value");
        assert_eq!(
            value.map(Attr::to_string).as_deref(),
            Some(text),
            "type {ty}"
        );
    }
}
