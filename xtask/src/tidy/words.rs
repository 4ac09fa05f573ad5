//! Banned phrases: dialect that readers have to translate, in comments, strings and Markdown.

/// Each phrase with its replacement.
const BANNED: &[(&str, &str)] = &[
    ("nobody", "name the subject, or use the passive"),
    ("somebody", "name the subject"),
    ("is no", "`is not a`, `does not`, `has no`"),
    ("are none", "`there are no ...`, `if any`"),
    ("is there", "`exists`, `is available`"),
    ("are there", "`exist`, `are available`"),
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
    ("who", "name the subject: `the thread that`, `callers`"),
    ("whom", "name the subject"),
    ("whoever", "name the subject: `the thread that`, `callers`"),
    ("anybody", "name the subject"),
    ("everybody", "name the subject"),
    ("it is said", "name the subject"),
    ("says so", "name the condition"),
    ("has to say", "`reports`, `returns`"),
    ("of its own accord", "`by itself`, `automatically`"),
    ("given away", "`taken`, `moved`"),
    ("in the making", "`being built`"),
    ("under way", "`in progress`, `running`"),
    ("other way round", "`reversed`, `vice versa`"),
    ("if need be", "`if needed`"),
    ("for want of", "`because of missing`, `without`"),
    ("beside", "`next to`, `besides`"),
    ("not-a-number", "`NaN`"),
    ("looks at no", "`ignores`"),
];

/// Idioms that contain a banned phrase.
const ALLOWED: &[&str] = &["there is no", "there are none", "gives up", "so many that"];

/// Returns whether the file's words are checked.
pub fn is_checked(name: &str) -> bool {
    // This file has to name the phrases; the change log is history.
    !name.ends_with("tidy/words.rs") && name != "CHANGELOG.md"
}

/// Returns the banned phrases of a file, with line numbers.
pub fn check(name: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    let mut in_docstring = false;
    for (i, line) in text.lines().enumerate() {
        let words = match name.rsplit('.').next() {
            Some("rs") => prose(line),
            Some("py") => python_prose(line, &mut in_docstring),
            _ => line.to_string(),
        };
        let words = ALLOWED
            .iter()
            .fold(words.to_lowercase(), |w, a| w.replace(a, ""));
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

/// Returns the comment or the docstring of a line of Python.
fn python_prose(line: &str, in_docstring: &mut bool) -> String {
    let quotes = line.matches("\"\"\"").count();
    let is_doc = *in_docstring || quotes > 0;
    *in_docstring ^= quotes % 2 == 1;
    match line.split_once('#') {
        _ if is_doc => line.to_string(),
        Some((_, comment)) => comment.to_string(),
        None => String::new(),
    }
}

/// Returns whether lower-case `text` contains `phrase` between word boundaries.
fn contains(text: &str, phrase: &str) -> bool {
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
            ("a.rs", "err(\"There is no op\"); // fine", 0),
            ("a.rs", "err(\"x is no op\"); // Who waits.", 2),
            ("a.rs", "let lies = \"fine\";", 0),
            ("a.py", "x = \"nobody\"  # It gives one.", 1),
            ("a.py", "\"\"\"Somebody\ngives.\n\"\"\"\nlies = 1", 2),
        ] {
            assert_eq!(check(name, text).len(), n, "{text}");
        }
    }
}
