//! Programs in text form, what they are run with, and what they must result in.

use ferroflow_base::{Code as StatusCode, Result};
use ferroflow_jit::{Array, Code, CodeKey, Exit, compile};
use ferroflow_opdef::{Cluster, ClusterOutput, ScalarType};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::Tensor;
use std::io::Write;

/// Runs a program; the elements of its outputs, or how it ended.
fn run(text: &str, inputs: &[u64], vector: &[f32]) -> Result<std::result::Result<Vec<u64>, Exit>> {
    let program = Cluster::decode(text)?;
    assert_eq!(Cluster::decode(&program.to_string())?, program, "{text}");
    let code = compile(&program)?;
    let mut words = inputs.to_vec();
    words.resize(code.n_words(), 0);
    let tensor = Tensor::vector(vector)?;
    let n_own = program.arrays.len();
    let mut arrays = Vec::new();
    if program.array_types().len() > n_own {
        arrays.push(Array::Input(tensor.bytes()?));
    }
    arrays.extend((0..n_own).map(|_| Array::Own(Vec::new(), 0)));
    let mut streams = vec![Philox::new(1, 2); program.n_streams as usize];
    match code.run(&mut words, &mut arrays, &mut streams, &CancelToken::new())? {
        Exit::Done => {}
        other => return Ok(Err(other)),
    }
    let mut elements = Vec::new();
    let mut at = 0;
    for output in &program.outputs {
        match output {
            ClusterOutput::Tensor(ty, _, values) => {
                for word in &words[at..at + values.len()] {
                    elements.push(match ty {
                        ScalarType::Bool => *word & 0xff,
                        ScalarType::I32 | ScalarType::F32 => *word & 0xffff_ffff,
                        ScalarType::I64 | ScalarType::F64 => *word,
                    });
                }
                at += values.len();
            }
            ClusterOutput::Array(slot) => match &arrays[*slot as usize] {
                Array::Own(words, n) => {
                    let halves = words.iter().flat_map(|w| [*w & 0xffff_ffff, *w >> 32]);
                    elements.extend(halves.take(*n));
                }
                Array::Input(_) => {}
            },
        }
    }
    Ok(Ok(elements))
}

fn bits(x: f32) -> u64 {
    x.to_bits().into()
}

struct Row {
    text: &'static str,
    inputs: &'static [u64],
    expect: std::result::Result<&'static [u64], Exit>,
}

const fn row(
    text: &'static str,
    inputs: &'static [u64],
    expect: std::result::Result<&'static [u64], Exit>,
) -> Row {
    Row {
        text,
        inputs,
        expect,
    }
}

/// The word of an i32.
const fn word(x: i32) -> u64 {
    x as u32 as u64
}

const MINUS: u64 = word(-1);
const LEAST: u64 = 1 << 31;

/// `f` of two i32.
macro_rules! ints {
    ($f:literal, $a:expr, $b:expr, $expect:expr) => {
        row(
            concat!("in i32[]; in i32[]; v2 = ", $f, "(v0, v1); out i32[](v2);"),
            &[word($a), word($b)],
            $expect,
        )
    };
}

/// `f` of an i32 and the constant `b`.
macro_rules! by_constant {
    ($f:literal, $a:expr, $b:literal, $expect:expr) => {
        row(
            concat!(
                "in i32[]; v1 = const i32 ",
                $b,
                "; v2 = ",
                $f,
                "(v0, v1); out i32[](v2);"
            ),
            &[word($a)],
            Ok(&[word($expect)]),
        )
    };
}

/// The first numbers of `RandomUniformInt` with the seeds 1 and 2, and the first one of its second run.
const DICE: &[u64] = &[6, 6, 1, 2];
/// `StatelessRandomUniform` with the seeds 1 and 2.
const FLOATS: &[u64] = &[0x3f58_1458, 0x3e44_a788];

const ROWS: &[Row] = &[
    ints!("AddV2", i32::MAX, 1, Ok(&[LEAST])),
    ints!("FloorDiv", -7, 2, Ok(&[word(-4)])),
    ints!("FloorDiv", 7, -2, Ok(&[word(-4)])),
    ints!("FloorMod", -7, 3, Ok(&[2])),
    ints!("FloorMod", 7, -3, Ok(&[word(-2)])),
    ints!("TruncateDiv", -7, 2, Ok(&[word(-3)])),
    ints!("TruncateMod", -7, 2, Ok(&[word(-1)])),
    ints!("FloorDiv", i32::MIN, -1, Ok(&[LEAST])),
    ints!("FloorMod", i32::MIN, -1, Ok(&[0])),
    ints!("FloorDiv", 1, 0, Err(Exit::Left)),
    ints!("FloorMod", 1, 0, Err(Exit::Left)),
    ints!("TruncateDiv", 1, 0, Err(Exit::Left)),
    ints!("Pow", 3, 4, Ok(&[81])),
    ints!("Pow", 3, -1, Err(Exit::Left)),
    ints!("LeftShift", 1, 40, Ok(&[LEAST])),
    ints!("LeftShift", 1, -3, Ok(&[1])),
    ints!("RightShift", -8, 1, Ok(&[word(-4)])),
    ints!("Maximum", -1, 0, Ok(&[0])),
    ints!("Minimum", -1, 0, Ok(&[MINUS])),
    by_constant!("FloorDiv", -7, "0x2", -4),
    by_constant!("FloorMod", -7, "0x8", 1),
    by_constant!("FloorDiv", -7, "0x3", -3),
    by_constant!("FloorMod", -7, "0x3", 2),
    by_constant!("FloorMod", 7, "0xfffffffe", -1),
    by_constant!("FloorDiv", i32::MIN, "0xffffffff", i32::MIN),
    by_constant!("TruncateDiv", -7, "0x2", -3),
    row(
        "in f32[]; v1 = cast i32(v0); v2 = cast i64(v0); v3 = cast bool(v0); out i32[](v1); out i64[](v2); out bool[](v3);",
        &[0x7fc0_0000],
        Ok(&[LEAST, 1 << 63, 1]),
    ),
    row(
        "in f32[]; v1 = cast i32(v0); v2 = cast i64(v0); out i32[](v1); out i64[](v2);",
        &[0x4f80_0000], // 2^32
        Ok(&[LEAST, 1 << 32]),
    ),
    row(
        "in i32[]; v1 = cast f32(v0); v2 = cast i64(v0); out f32[](v1); out i64[](v2);",
        &[MINUS],
        Ok(&[0xbf80_0000, u64::MAX]),
    ),
    row(
        "in f32[]; in f32[]; v2 = Maximum(v0, v1); v3 = Maximum(v1, v0); v4 = Minimum(v0, v1); v5 = NotEqual(v0, v0); out f32[](v2); out f32[](v3); out f32[](v4); out bool[](v5);",
        &[0x7fc0_0000, 0x3f80_0000],
        Ok(&[0x7fc0_0000, 0x7fc0_0000, 0x7fc0_0000, 1]),
    ),
    // No iteration, and a conditional in a loop.
    row(
        "in i32[]; v1 = const i32 0x0; loop (v2 = v0, v3 = v1) { v4 = Greater(v2, v1); } while v4 exit (v3) as (v9) { v5 = AddV2(v3, v2); v6 = const i32 0x1; v7 = Sub(v2, v6); } next (v7, v5); out i32[](v9);",
        &[0],
        Ok(&[0]),
    ),
    row(
        "in i64[]; v1 = const i64 0x0; v2 = const i64 0x1; v3 = const i64 0x2; v4 = const i64 0x3; loop (v5 = v0, v6 = v1) { v7 = Greater(v5, v2); } while v7 exit (v6) as (v20) { v8 = FloorMod(v5, v3); v9 = Equal(v8, v1); if v9 as (v10) { v11 = FloorDiv(v5, v3); } yield (v11) else { v12 = Mul(v5, v4); v13 = AddV2(v12, v2); } yield (v13); v14 = AddV2(v6, v2); } next (v10, v14); out i64[](v20);",
        &[837799],
        Ok(&[524]),
    ),
    // Four dice of a stream, and two floats of seeds, as TensorFlow 2.21 draws them.
    row(
        "streams 1; v0 = const i32 0x1; v1 = const i32 0x7; (v2, v3, v4) = random uniform_int i32 stream 0 range(v0, v1); (v5) = random uniform_int i32 stream 0 range(v0, v1); out i32[3](v2, v3, v4); out i32[](v5);",
        &[],
        Ok(DICE),
    ),
    row(
        "v0 = const i64 0x1; v1 = const i64 0x2; (v2, v3) = random uniform f32 seeds(v0, v1); out f32[2](v2, v3);",
        &[],
        Ok(FLOATS),
    ),
    row(
        "streams 1; v0 = const i32 0x1; (v1) = random uniform_int i32 stream 0 range(v0, v0); out i32[](v1);",
        &[],
        Err(Exit::Left),
    ),
    row(
        "in bool[]; leave(v0); out bool[](v0);",
        &[1],
        Err(Exit::Left),
    ),
];

#[test]
fn programs_result_in() -> Result<()> {
    for row in ROWS {
        let result = run(row.text, row.inputs, &[])?;
        let expect = row.expect.map(<[u64]>::to_vec);
        assert_eq!(result, expect, "{} with {:x?}", row.text, row.inputs);
    }
    Ok(())
}

/// The sums of the first elements of a vector.
const SUMS: &str = "in i32[]; in f32[?]; array f32; v1 = const i64 0x0; v2 = const f32 0x0; \
    v3 = const i64 0x1; v4 = cast i64(v0); alloc a1(v4); v5 = len a1; \
    loop (v6 = v1, v7 = v2) { v8 = Less(v6, v5); } while v8 exit () as () { \
    v9 = load a0(v6); v10 = AddV2(v7, v9); store a1(v6, v10); v11 = AddV2(v6, v3); \
    } next (v11, v10); out a1;";

#[test]
fn arrays_are_bounded() -> Result<()> {
    let sums = |n: i32| run(SUMS, &[n as u32 as u64], &[1.0, 2.0, 4.0]);
    assert_eq!(sums(0)?, Ok(vec![]));
    assert_eq!(sums(3)?, Ok(vec![bits(1.0), bits(3.0), bits(7.0)]));
    assert_eq!(sums(4)?, Err(Exit::Left));
    assert_eq!(sums(-1)?, Err(Exit::Left));
    Ok(())
}

#[test]
fn endless_loops_can_be_cancelled() -> Result<()> {
    let text = "in bool[]; loop (v1 = v0) { } while v0 exit () as () { } next (v1);";
    let code = compile(&Cluster::decode(text)?)?;
    let cancel = CancelToken::new();
    cancel.cancel();
    assert_eq!(
        code.run(&mut [1], &mut [], &mut [], &cancel)?,
        Exit::Cancelled
    );
    Ok(())
}

#[test]
fn programs_that_break_a_rule_are_refused() {
    for (text, why) in [
        ("out i32[](v0);", "v0 is not defined"),
        (
            "in i32[]; v0 = Neg(v0); out i32[](v0);",
            "v0 is defined twice",
        ),
        ("in i32[]; out f32[](v0);", "v0 is i32, not f32"),
        ("in i32[]; out i32[2](v0);", "has 1 elements"),
        (
            "in i32[]; v1 = Exp(v0); out i32[](v1);",
            "Exp does not take i32",
        ),
        ("v0 = const bool 0x2;", "not a constant of bool"),
        (
            "in f32[?]; v0 = const i64 0x0; v1 = load a1(v0);",
            "there is no a1",
        ),
        (
            "in f32[?]; v0 = const i64 0x0; v1 = load a0(v0); store a0(v0, v1);",
            "a0 is an input",
        ),
        ("array f32; v0 = len a0;", "used before it is allocated"),
        (
            "in bool[]; if v0 as () { array f32; } yield () else { } yield ();",
            "malformed",
        ),
        (
            "in bool[]; in f32[]; if v0 as (v2) { v3 = Neg(v1); } yield (v3) else { } yield (v0);",
            "differ in results",
        ),
        (
            "in bool[]; if v0 as () { v1 = LogicalNot(v0); } yield () else { } yield (); out bool[](v1);",
            "v1 is not defined",
        ),
        (
            "in i32[]; loop (v1 = v0) { } while v0 exit () as () { } next (v1);",
            "v0 is i32, not bool",
        ),
        (
            "in i32[99999999999, 99999999999]; out i32[](v0);",
            "inputs of more than",
        ),
        ("v70000 = const i32 0x0;", "beyond 65536 values"),
        (
            "(v0) = random uniform f32 stream 0; out f32[](v0);",
            "there is no stream 0",
        ),
        (
            "streams 1; (v0) = random uniform i32 stream 0; out i32[](v0);",
            "no uniform i32",
        ),
        (
            "streams 1; (v0) = random uniform_int i32 stream 0; out i32[](v0);",
            "with such a range",
        ),
        ("nonsense", "malformed cluster program"),
    ] {
        let error = Cluster::decode(text).expect_err(text);
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(
            error.message().contains(why),
            "{error}\nshould say: {why}\n{text}"
        );
    }
}

/// A key in a file of its own.
fn key(name: &str, digits: &str) -> Result<CodeKey> {
    let path = std::env::temp_dir().join(format!("ferroflow-jit-{}-{name}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path);
    let mut file = file.expect("a temporary file");
    file.write_all(digits.as_bytes()).expect("written");
    let key = CodeKey::from_file(&path);
    std::fs::remove_file(&path).expect("the file");
    key
}

#[test]
fn sealed_code_runs_with_its_key_only() -> Result<()> {
    let own = key("own", "00112233445566778899aabbccddeeff\n")?;
    let other = key("other", "00112233445566778899aabbccddeefe")?;
    // It polls and calls a kernel's function.
    let text = "in f32[]; v1 = const f32 0x40000000; loop (v2 = v0) { v3 = Less(v2, v1); } \
                while v3 exit (v2) as (v6) { v4 = Exp(v2); v5 = AddV2(v4, v1); } next (v5); out f32[](v6);";
    let program = Cluster::decode(text)?;
    let code = compile(&program)?;
    let sealed = code.seal(&program, &own)?;
    let run = |code: &Code| -> Result<u64> {
        let mut words = [bits(0.5)];
        assert_eq!(
            code.run(&mut words, &mut [], &mut [], &CancelToken::new())?,
            Exit::Done
        );
        Ok(words[0])
    };
    let unsealed = Code::unseal(&program, &sealed, &own).expect("code of this machine");
    assert_eq!(run(&unsealed)?, run(&code)?);
    assert!(Code::unseal(&program, &sealed, &other).is_none());
    let another = Cluster::decode("in f32[]; out f32[](v0);")?;
    assert!(Code::unseal(&another, &sealed, &own).is_none());
    for i in 0..sealed.len() {
        let mut damaged = sealed.clone();
        damaged[i] ^= 1;
        assert!(Code::unseal(&program, &damaged, &own).is_none(), "byte {i}");
        assert!(
            Code::unseal(&program, &sealed[..i], &own).is_none(),
            "{i} bytes"
        );
    }
    for bad in [
        "",
        "001122",
        "00112233445566778899aabbccddeefg",
        "+0112233445566778899aabbccddeeff",
    ] {
        let error = key("bad", bad).err().expect(bad);
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(error.message().contains("32 hexadecimal digits"), "{error}");
    }
    Ok(())
}
