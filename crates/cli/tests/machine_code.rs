//! Compiled models with machine code, which only processes with the key run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `2 · x + 1`, `n` times.
const LOOP: &str = "versions { producer: 2474 }
node { name: 'n' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'shape' value { shape { } } } }
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'shape' value { shape { } } } }
node { name: 'loop' op: 'While' input: 'n' input: 'x' attr { key: 'T' value { list { type: DT_INT32 type: DT_INT32 } } }
  attr { key: 'cond' value { func { name: 'cond' } } } attr { key: 'body' value { func { name: 'body' } } } }
node { name: 'y' op: 'Identity' input: 'loop:1' attr { key: 'T' value { type: DT_INT32 } } }
library {
  function { signature { name: 'cond' input_arg { name: 'n' type: DT_INT32 } input_arg { name: 'x' type: DT_INT32 } output_arg { name: 'r' type: DT_BOOL } }
    node_def { name: 'zero' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 0 } } } }
    node_def { name: 'g' op: 'Greater' input: 'n' input: 'zero:output:0' attr { key: 'T' value { type: DT_INT32 } } }
    ret { key: 'r' value: 'g:z:0' } }
  function { signature { name: 'body' input_arg { name: 'n' type: DT_INT32 } input_arg { name: 'x' type: DT_INT32 }
      output_arg { name: 'm' type: DT_INT32 } output_arg { name: 'r' type: DT_INT32 } }
    node_def { name: 'one' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
    node_def { name: 's' op: 'Sub' input: 'n' input: 'one:output:0' attr { key: 'T' value { type: DT_INT32 } } }
    node_def { name: 'd' op: 'AddV2' input: 'x' input: 'x' attr { key: 'T' value { type: DT_INT32 } } }
    node_def { name: 'a' op: 'AddV2' input: 'd:z:0' input: 'one:output:0' attr { key: 'T' value { type: DT_INT32 } } }
    ret { key: 'm' value: 's:z:0' } ret { key: 'r' value: 'a:z:0' } } }";

fn has_code(file: &Path) -> bool {
    let bytes = std::fs::read(file).expect("a compiled file");
    bytes.windows(14).any(|w| w == b"ferroflow code")
}

/// Standard output, or the error.
fn ferroflow(args: &[&str], key: Option<&Path>) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflow"));
    command.args(args).env_remove("FERROFLOW_CODE_KEY");
    if let Some(key) = key {
        command.env("FERROFLOW_CODE_KEY", key);
    }
    let output = command.output().expect("the binary starts");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn files_hold_machine_code_for_those_with_the_key() {
    let folder = std::env::temp_dir().join(format!("ferroflow-code-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a new folder");
    let path = |name: &str| -> PathBuf { folder.join(name) };
    let (model, plain, sealed) = (path("loop.pbtxt"), path("plain.bef"), path("sealed.bef"));
    let (key, other, bad) = (path("key"), path("other"), path("bad"));
    std::fs::write(&model, LOOP).expect("a model");
    write_private(&key, "000102030405060708090a0b0c0d0e0f\n");
    write_private(&other, "0f0e0d0c0b0a09080706050403020100\n");
    write_private(&bad, "secret");
    let name = |path: &Path| path.to_string_lossy().into_owned();
    for (file, key) in [(&plain, None), (&sealed, Some(&*key))] {
        let made = ferroflow(&["compile", &name(&model), "-o", &name(file)], key);
        made.expect("compiles");
        assert_eq!(has_code(file), key.is_some());
    }
    for file in [&plain, &sealed] {
        for key in [None, Some(&*key), Some(&*other)] {
            let file = name(file);
            let args = ["run", &file, "--feed", "n=10", "--feed", "x=3"];
            let out = ferroflow(&args, key).expect("runs");
            assert!(out.contains("4095"), "{out}");
        }
    }
    let refused = |key: &Path, why: &str| {
        let args = ["run", &name(&sealed), "--feed", "n=1", "--feed", "x=1"];
        let error = ferroflow(&args, Some(key)).expect_err("no key");
        let parts = ["INVALID_ARGUMENT", "is not a key for machine code", why];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&bad, "32 hexadecimal digits");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&key, mode).expect("own file");
        refused(&key, "others can access it");
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

/// Writes a file that only its owner can access.
fn write_private(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).expect("a new file");
    file.write_all(text.as_bytes()).expect("written");
}
