//! Phrases that a reader has to translate, in comments, strings and Markdown.

/// Each phrase with what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("nobody", "name the subject, or use the passive"),
    ("somebody", "name the subject"),
    ("is no", "`is not a`, `does not`, `has no`"),
    ("are none", "`there are no ...`, `if any`"),
    ("is there already", "`already exists`"),
    ("no longer there", "`removed`, `no longer exists`"),
    ("gives", "`returns`, `yields`, `produces`"),
    ("had better", "`should`"),
    ("shall", "`must`, `should`"),
    ("kin", "`and similar`, or the list"),
    ("heeds", "`honors`, `respects`"),
    ("hears", "`receives`"),
    ("lies", "`is`"),
    ("comes to", "`reaches`, `amounts to`"),
    ("goes on", "`continues`"),
    ("cannot be had", "`is not available`"),
    ("to be had", "`available`"),
    ("held against", "`compared with`, `tested against`"),
    ("with a word about it", "`with a notice`"),
    ("turned round", "`reversed`"),
    ("so many", "the number, or `n`"),
];

/// Folders that still have them. The list only shrinks.
const UNCLEAN: &[&str] = &[
    "crates/compile/src/",
    "crates/executor/src/",
    "crates/graph/src/",
    "crates/program/src/",
    "crates/remote/src/",
    "crates/runtime/src/",
];

/// Returns whether the file's words are checked.
pub fn is_checked(name: &str) -> bool {
    // This file has to name the phrases, and a change log tells what was.
    !UNCLEAN.iter().any(|c| name.starts_with(c))
        && !name.ends_with("tidy/words.rs")
        && name != "CHANGELOG.md"
}

/// Returns the banned phrases of a file, with line numbers.
pub fn check(name: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    let is_rust = name.ends_with(".rs");
    for (i, line) in text.lines().enumerate() {
        let words = if is_rust {
            prose(line)
        } else {
            line.to_string()
        };
        for (phrase, instead) in BANNED.iter().filter(|(p, _)| contains(&words, p)) {
            let n = i + 1;
            offences.push(format!("{name}:{n}: '{phrase}': write {instead}"));
        }
    }
    offences
}

/// Returns the comment and the string literals of a line of Rust.
fn prose(line: &str) -> String {
    let mut out = String::new();
    let (mut quoted, mut escaped) = (false, false);
    let mut previous = ' ';
    for (i, c) in line.char_indices() {
        match c {
            '/' if !quoted && previous == '/' => return out + " " + &line[i..],
            '"' if !escaped && previous != '\'' => {
                quoted = !quoted;
                out.push(' ');
            }
            c if quoted => out.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        previous = c;
    }
    out
}

/// Whether `text` contains `phrase` between word boundaries, in any case.
fn contains(text: &str, phrase: &str) -> bool {
    let text = text.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn phrases_are_found_in_prose_only() {
        for (name, text, n) in [
            ("a.md", "This gives two.", 1),
            ("a.md", "The kind is known.", 0),
            ("a.rs", "let gives = 1;", 0),
            ("a.rs", "let x = 1; // It gives one.", 1),
            ("a.rs", "err(\"There is no op\"); // fine", 1),
            ("a.rs", "let lies = \"fine\";", 0),
        ] {
            assert_eq!(check(name, text).len(), n, "{text}");
        }
    }
}
