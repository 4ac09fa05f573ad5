//! Patterns in RE2's syntax. The results are those of TensorFlow 2.21.

use super::*;

/// The text with each match in angle brackets, or what RE2 complains about.
type Wanted = std::result::Result<&'static [u8], &'static str>;

/// Replaces each match by itself in angle brackets; `Err` is RE2's complaint.
fn check(pattern: &str, text: &str, want: Wanted) {
    let replaced = Replacer::new(pattern, br"<\0>", true).map(|replacer| {
        let mut out = Vec::new();
        match replacer.write(text.as_bytes(), &mut out) {
            Some(()) => out,
            None => text.as_bytes().to_vec(),
        }
    });
    match (replaced, want) {
        (Ok(got), Ok(want)) => assert_eq!(
            got.escape_ascii().to_string(),
            want.escape_ascii().to_string(),
            "{pattern}"
        ),
        (Err(e), Err(want)) => {
            let want = format!("Invalid pattern: {pattern}, error: {want}");
            assert_eq!(e.message(), want, "{pattern}");
        }
        (got, want) => panic!("{pattern}: {got:?} instead of {want:?}"),
    }
}

#[test]
fn patterns_are_those_of_re2() {
    let rows: &[(&str, &str, Wanted)] = &[
        (
            "[^\\w\\s]",
            "na\u{ef}ve \u{4f60}\u{597d} x",
            Ok(b"na<\xc3\xaf>ve <\xe4\xbd\xa0><\xe5\xa5\xbd> x"),
        ),
        ("\\w", "\u{e9}_a", Ok(b"\xc3\xa9<_><a>")),
        ("\\W", "\u{e9} a", Ok(b"<\xc3\xa9>< >a")),
        ("\\d", "\u{967}9", Ok(b"\xe0\xa5\xa7<9>")),
        ("[\\d]+", "\u{967}99", Ok(b"\xe0\xa5\xa7<99>")),
        ("\\D", "\u{967}9", Ok(b"<\xe0\xa5\xa7>9")),
        ("\\s", "a\u{a0}b\u{b}c\u{9}d", Ok(b"a\xc2\xa0b\x0bc<\x09>d")),
        ("\\S", "a\u{a0} b", Ok(b"<a><\xc2\xa0> <b>")),
        ("[\\W\\d]", "a1\u{e9}", Ok(b"a<1><\xc3\xa9>")),
        ("\\b", "\u{e9} a", Ok(b"\xc3\xa9 <>a<>")),
        ("\\B", "\u{e9}ab", Ok(b"<>\xc3\xa9a<>b")),
        ("[[a]]", "a a] [] []]", Ok(b"a <a]> <[]> <[]>]")),
        ("[a[b]]", "a] b] []", Ok(b"<a]> <b]> <[]>")),
        ("[a&&b]", "a&b", Ok(b"<a><&><b>")),
        ("[a--b]", "a-b", Err("invalid character class range: a--")),
        ("[a~~b]", "a~b", Ok(b"<a><~><b>")),
        ("{", "a{b", Ok(b"a<{>b")),
        ("a{3", "a{3 aaa", Ok(b"<a{3> aaa")),
        ("a{,3}", "a{,3}", Ok(b"<a{,3}>")),
        ("a{2,3}", "aaaa a", Ok(b"<aaa>a a")),
        ("a{02}", "aa a{02}", Ok(b"aa <a{02}>")),
        ("\\Qa.b\\E+", "a.bb axb", Ok(b"<a.bb> axb")),
        ("\\Q[x", "a[x", Ok(b"a<[x>")),
        ("\\C", "\u{e9}", Ok(b"<\xc3><\xa9>")),
        ("\\123", "S", Ok(b"<S>")),
        ("\\0", "a\u{0}b", Ok(b"a<\x00>b")),
        ("\\1", "a", Err("invalid escape sequence: \\1")),
        ("\\p{^Lu}", "aB", Ok(b"<a>B")),
        ("\\P{Lu}", "aB", Ok(b"<a>B")),
        ("\\pL", "a1\u{e9}", Ok(b"<a>1<\xc3\xa9>")),
        ("\\p{Greek}", "a\u{3a3}", Ok(b"a<\xce\xa3>")),
        ("[\\p{Greek}x]", "ax\u{3a3}", Ok(b"a<x><\xce\xa3>")),
        (
            "\\p{Letter}",
            "a",
            Err("invalid character class range: \\p{Letter}"),
        ),
        (
            "\\p{Alphabetic}",
            "a",
            Err("invalid character class range: \\p{Alphabetic}"),
        ),
        (
            "\\p{Script=Greek}",
            "a",
            Err("invalid character class range: \\p{Script=Greek}"),
        ),
        ("\\pX", "a", Err("invalid character class range: \\pX")),
        ("a**", "a", Err("bad repetition operator: **")),
        ("a++", "a", Err("bad repetition operator: ++")),
        ("a*?", "aa", Ok(b"<>a<>a<>")),
        ("a*??", "a", Err("bad repetition operator: *??")),
        ("a{1}{2}", "a", Err("bad repetition operator: {1}{2}")),
        ("a{1001}", "a", Err("invalid repetition size: {1001}")),
        ("a{2,1}", "a", Err("invalid repetition size: {2,1}")),
        ("(?<n>b)", "b", Err("invalid perl operator: (?<")),
        ("(?P<n>b)", "ab", Ok(b"a<b>")),
        ("\\u00e9", "a", Err("invalid escape sequence: \\u")),
        ("(?R)", "a", Err("invalid perl operator: (?R")),
        ("(?x)a b", "ab", Err("invalid perl operator: (?x")),
        ("(?i)ab", "aB", Ok(b"<aB>")),
        ("(?i-s:A)b", "ab aB", Ok(b"<ab> aB")),
        ("(?U)a+", "aa", Ok(b"<a><a>")),
        ("[]a]", "a]", Ok(b"<a><]>")),
        ("[^]a]", "ab]", Ok(b"a<b>]")),
        ("[z-a]", "a", Err("invalid character class range: z-a")),
        ("[a-\\d]", "a1-", Err("invalid escape sequence: \\d")),
        (
            "[[:foo:]]",
            "a",
            Err("invalid character class range: [:foo:]"),
        ),
        ("[[:^alpha:]]", "a1", Ok(b"a<1>")),
        ("[[:word:]]", "a_\u{e9}", Ok(b"<a><_>\xc3\xa9")),
        ("[\\b]", "a", Err("invalid escape sequence: \\b")),
        ("[a", "a", Err("missing ]: [a")),
        ("x*", "\u{e9}", Ok(b"<>\xc3\xa9<>")),
        ("x*", "axxb", Ok(b"<>a<xx>b<>")),
        ("a*", "baac", Ok(b"<>b<aa>c<>")),
        ("(a|ab)(c|bcd)?", "abcd", Ok(b"<abcd>")),
        ("", "\u{4f60}", Ok(b"<>\xe4\xbd\xa0<>")),
        ("\\<", "a<b", Ok(b"a<<>b")),
        ("\\_", "a_", Ok(b"a<_>")),
        (
            "\\\u{e9}",
            "\u{e9}",
            Err("invalid escape sequence: \\\u{e9}"),
        ),
        ("\\x41\\x{e9}", "A\u{e9}", Ok(b"<A\xc3\xa9>")),
        ("[\\x00-\\x20]", "a b", Ok(b"a< >b")),
        ("\\h", "a", Err("invalid escape sequence: \\h")),
        ("\\Z", "a", Err("invalid escape sequence: \\Z")),
        ("\\pN", "1a", Ok(b"<1>a")),
        ("^*", "a", Ok(b"<>a<>")),
        ("|a", "a", Ok(b"<>a<>")),
        ("\\a", "\u{7}", Ok(b"<\x07>")),
        ("a]", "a]", Ok(b"<a]>")),
        ("a}", "a}", Ok(b"<a}>")),
        ("(", "a", Err("missing ): (")),
        (")", "a", Err("unexpected ): )")),
        ("*a", "a", Err("no argument for repetition operator: *")),
        ("a\\", "a", Err("trailing \\")),
        ("[[:alpha:]", "a", Err("missing ]: [[:alpha:]")),
        ("[a-]", "a-", Ok(b"<a><->")),
        ("[-a]", "a-", Ok(b"<a><->")),
        ("[a-b-c]", "a-c", Ok(b"<a><-><c>")),
        ("\\E", "a", Err("invalid escape sequence: \\E")),
    ];
    for (pattern, text, want) in rows {
        check(pattern, text, *want);
    }
}

#[test]
fn a_single_rewrite_that_ends_in_an_escape_changes_nothing() {
    let replacer = Replacer::new("b", br"\n", false).expect("a pattern");
    assert!(replacer.write(b"abc", &mut Vec::new()).is_none());
}
