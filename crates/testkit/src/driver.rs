//! A stand-in for NVIDIA's driver.

use std::path::PathBuf;
use std::process::Command;

/// Compiles the stand-in to a library that is not loaded yet; `None` without a C compiler. Its device is the host, and
/// what is captured runs when it is launched.
pub fn stand_in_driver() -> Option<PathBuf> {
    compile(&[])
}

/// As [`stand_in_driver`], of a library that takes the place of the driver once it is loaded: the loader then finds it by the
/// driver's name.
pub fn replacement_driver() -> Option<PathBuf> {
    compile(&["-Wl,-soname,libcuda.so.1"])
}

fn compile(options: &[&str]) -> Option<PathBuf> {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../device/src/cuda/fake_driver.c"
    );
    // Tests run at the same time.
    let thread = std::thread::current().id();
    let file = format!("ferroflow-driver-{}-{thread:?}.so", std::process::id());
    let library = std::env::temp_dir().join(file);
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .args(options)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("there is no C compiler: the test is skipped");
        return None;
    }
    Some(library)
}
