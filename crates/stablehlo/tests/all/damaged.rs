//! Programs with changed and missing bytes are read or refused. `MANGLED=1000000` changes each
//! program more often.

use crate::artifacts;
use ferroflow_stablehlo::Module;
use ferroflow_testkit::random::Random;

/// Reads bytes and writes the program, if it is one.
fn check(bytes: &[u8]) -> bool {
    Module::read(bytes).is_ok_and(|module| !module.to_string().is_empty())
}

#[test]
fn every_start_of_a_program_is_refused() {
    for (name, bytes) in artifacts::all() {
        for end in 0..bytes.len() {
            assert!(!check(&bytes[..end]), "{name}: {end} bytes");
        }
    }
}

#[test]
fn changed_programs_are_read_or_refused() {
    let times = std::env::var("MANGLED").map_or(500, |n| n.parse().expect("a number"));
    let mut random = Random(0x5EED);
    let mut read = 0;
    for (_, bytes) in artifacts::all() {
        for _ in 0..times {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(3) {
                let i = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[i] ^= 1 << random.below(8),
                    1 => bytes[i] = random.below(256) as u8,
                    2 => bytes[i] = [0, 1, 2, 0x7F, 0x80, 0xFF][random.below(6)],
                    _ => {
                        let j = random.below(bytes.len());
                        bytes.swap(i, j);
                    }
                }
            }
            read += usize::from(check(&bytes));
        }
    }
    assert!(read > 0, "changed names are still names");
}
