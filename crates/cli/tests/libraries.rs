//! Kernels of shared libraries: a C library, built here, runs in host programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libraries")
}

fn temporary(name: &str) -> String {
    let name = format!("ferroflow-libraries-{}-{name}", std::process::id());
    std::env::temp_dir().join(name).display().to_string()
}

/// Returns the path of the library, built by the linker's C compiler.
fn build(name: &str, defines: &[&str]) -> String {
    let library = temporary(name);
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin/include");
    let status = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
            "-I",
        ])
        .arg(include)
        .args(defines)
        .arg(folder().join("kernels.c"))
        .args(["-o", &library])
        .status()
        .expect("a C compiler, which links Rust programs too");
    assert!(status.success());
    library
}

/// Translates a program of the folder and runs it with these libraries.
fn exec(program: &str, libraries: &str, options: &[&str]) -> Output {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let bef = temporary(&format!("{}.bef", COUNT.fetch_add(1, Ordering::Relaxed)));
    let ferroflow = || Command::new(env!("CARGO_BIN_EXE_ferroflow"));
    let status = ferroflow()
        .args(["translate", "--mlir-to-bef", "-o", &bef])
        .arg(folder().join(program))
        .status();
    assert!(status.expect("the binary starts").success());
    let output = ferroflow()
        .args(["exec", &format!("--shared_libs={libraries}"), &bef])
        .args(options)
        .output();
    std::fs::remove_file(&bef).expect("was written");
    output.expect("the binary starts")
}

#[test]
fn libraries_have_kernels() {
    let library = build("kernels.so", &[]);
    for queue in ["--work_queue_type=s", "--work_queue_type=mstd:2"] {
        let output = exec("program.mlir", &library, &[queue]);
        let text = String::from_utf8_lossy(&output.stdout).to_string();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{log}");
        for line in [
            "int32 = 43",
            "scale ran 1 times",
            "héllo: 2 attributes, 2 results",
            "f64 = 3.500000",
            "DenseHostTensor dtype = F32, shape = [2, 2], values = [4.000000e+00, 3.000000e+00, \
             2.000000e+00, 1.000000e+00]",
            "int32 = 3",
            "int32 = 6",
        ] {
            assert!(text.lines().any(|l| l == line), "no '{line}' in {text}");
        }
        // The counter's last reader ran before its sum was available.
        let (_, objects) = text.split_once("objects").expect("a function");
        assert!(objects.contains("int32 = 3\nint32 = 0"), "{objects}");
        let errors = exec("errors.mlir", &library, &[queue, "--print_error_code"]);
        let text = String::from_utf8_lossy(&errors.stdout).to_string();
        let log = String::from_utf8_lossy(&errors.stderr);
        assert!(errors.status.success(), "{text}{log}");
        for part in ["DataLoss", "OutOfRange", "'sync_kernels' returned 42"] {
            assert!(text.contains(part), "no '{part}' in {text}");
        }
    }
    let taken = build("taken.so", &["-DTAKES_A_NAME"]);
    let twice = format!("{library},{library}");
    for (libraries, part) in [
        ("/no/such/library.so", "cannot load the shared library"),
        (&taken, "kernel 'tfrt.add.i32' already exists"),
        (&twice, "kernel 'my.scale' already exists"),
    ] {
        let output = exec("program.mlir", libraries, &[]);
        let log = String::from_utf8_lossy(&output.stderr).to_string();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains(part), "no '{part}' in {log}");
    }
    let refusing = Command::new(env!("CARGO_BIN_EXE_ferroflow"))
        .args(["exec", &format!("--shared_libs={library}"), "-"])
        .env("FERROFLOW_TEST_REFUSES", "1")
        .output()
        .expect("the binary starts");
    let log = String::from_utf8_lossy(&refusing.stderr).to_string();
    assert!(
        log.contains("could not register its kernels: code 7"),
        "{log}"
    );
    for file in [library, taken] {
        std::fs::remove_file(file).expect("was built");
    }
}

#[test]
fn exec_prints_metrics() {
    let library = build("metrics.so", &[]);
    let output = exec("program.mlir", &library, &["--print_metrics"]);
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    let version = concat!("Metric:/ferroflow/version: ", env!("CARGO_PKG_VERSION"));
    assert!(text.lines().any(|l| l == version), "{text}");
    let times = text
        .lines()
        .find_map(|l| l.strip_prefix("Metric:/ferroflow/function_seconds:"));
    let counts = times.expect("a distribution").split_whitespace();
    let counts = counts.filter_map(|word| word.parse::<u32>().ok());
    assert_eq!(counts.sum::<u32>(), 6, "a count for each function: {text}");
    std::fs::remove_file(library).expect("was built");
}
