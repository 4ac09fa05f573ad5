//! Encodings of one byte per character that `encoding_rs` lacks: those of DOS, EBCDIC and others.
//!
//! `oracle/charsets.py` writes their characters as TensorFlow decodes them.

use super::REPLACEMENT;
use std::sync::OnceLock;

const FILE: &str = include_str!("../single_byte.txt");

/// The characters of the bytes of an encoding; some are [`REPLACEMENT`].
pub(crate) type Table = [u32; 256];

/// Returns the encoding of that name, without punctuation and in lower case.
pub(super) fn named(name: &str) -> Option<&'static Table> {
    static ALL: OnceLock<Vec<(Vec<&str>, Table)>> = OnceLock::new();
    let all = ALL.get_or_init(|| FILE.lines().filter_map(parsed).collect());
    let found = all.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, table)| table)
}

fn parsed(line: &'static str) -> Option<(Vec<&'static str>, Table)> {
    let (names, mut rest) = line.split_once('\t')?;
    let mut table = [REPLACEMENT; 256];
    for to in &mut table {
        let c = rest.chars().next()?;
        let (code_point, len) = match c {
            '\\' => (u32::from_str_radix(rest.get(2..4)?, 16).ok()?, 4),
            c => (c.into(), c.len_utf8()),
        };
        *to = code_point;
        rest = rest.get(len..)?;
    }
    Some((names.split(' ').collect(), table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_tables() {
        for line in FILE.lines() {
            assert!(parsed(line).is_some(), "{line}");
        }
        assert_eq!(named("cp437").map(|t| t[0x80]), Some(0xc7));
        assert_eq!(named("ibm37").map(|t| t[0xc1]), Some(0x41));
        assert!(named("").is_none());
    }
}
