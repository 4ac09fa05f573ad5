//! How the binary is linked: with the unwinder, so that it needs no shared library but the C
//! library's, and for a fixed place in memory, which saves a twentieth of it and the relocations
//! at every start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|v| v == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // Functions that are the same code are there once.
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
