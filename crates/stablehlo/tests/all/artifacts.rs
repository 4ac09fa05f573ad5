//! Programs that `oracle/stablehlo.py` wrote, and their text. `BLESS=1` writes the latter.

use ferroflow_stablehlo::Module;
use std::path::PathBuf;

/// The names of the programs.
const PROGRAMS: &[&str] = &[
    "softmax",
    "loop",
    "constants",
    "indexing",
    "convolution",
    "linalg",
    "random",
    "batch",
    "small_0_9_0",
    "small_0_12_0",
    "small_0_14_0",
];

/// Returns the bytes of every program.
pub fn all() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    PROGRAMS.iter().map(|name| {
        let bytes = std::fs::read(path(name, "mlirbc")).expect("a stored program");
        (*name, bytes)
    })
}

fn path(name: &str, kind: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    folder.join(name).with_extension(kind)
}

fn check(name: &str, bytes: &[u8]) {
    let module = Module::read(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    let text = module.to_string();
    let stored = path(name, "txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&stored, &text).expect("a written file");
    }
    let expected = std::fs::read_to_string(&stored).expect("a stored text");
    assert!(text == expected, "{name}:\n{text}\nexpected:\n{expected}");
    assert_eq!(module.functions[0].name, "main");
    assert!(
        module
            .function("main")
            .is_some_and(|f| !f.body.ops.is_empty())
    );
    assert!(module.function("absent").is_none());
}

#[test]
fn programs_have_the_expected_text() {
    for (name, bytes) in all() {
        check(name, &bytes);
    }
}
