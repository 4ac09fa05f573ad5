//! Link options of the binary: with the unwinder, so that it needs no shared library except the C
//! library's, and position-dependent, which saves a twentieth of memory and the relocations at
//! every start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|v| v == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // Identical functions are merged.
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
