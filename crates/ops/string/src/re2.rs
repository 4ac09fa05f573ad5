//! RE2's syntax of regular expressions (its `doc/syntax.txt`) in that of the crate `regex`, whose classes are those of
//! Unicode and nest.

/// Groups of ASCII characters with a name.
const ASCII: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];
/// The highest count of a repetition.
const MOST: u32 = 1000;

/// Returns `pattern` in the syntax of `regex`; what both refuse is left as it is.
///
/// # Errors
/// RE2's text for what only it refuses.
pub(crate) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator = Translator {
        rest: pattern,
        out: String::with_capacity(pattern.len() + 16),
    };
    // Where the operators directly before begin.
    let mut operators: Option<&str> = None;
    while let Some(first) = translator.rest.chars().next() {
        let start = translator.rest;
        if let Some(operator) = operator(start)? {
            translator.skip(operator.len());
            if let Some(before) = operators {
                let all = &before[..before.len() - translator.rest.len()];
                return Err(format!("bad repetition operator: {all}"));
            }
            translator.out.push_str(operator);
            operators = Some(start);
            continue;
        }
        operators = None;
        match first {
            '\\' => translator.escape()?,
            '[' => translator.class()?,
            '(' => translator.group()?,
            '{' => translator.literal(first),
            _ => {
                translator.skip(first.len_utf8());
                translator.out.push(first);
            }
        }
    }
    Ok(translator.out)
}

/// Returns the repetition operator that `text` begins with, if any.
fn operator(text: &str) -> Result<Option<&str>, String> {
    let len = match text.as_bytes().first() {
        Some(b'*' | b'+' | b'?') => 1,
        Some(b'{') => match counts(text) {
            Some((len, least, most)) => {
                if least > MOST || most.is_some_and(|most| most > MOST || most < least) {
                    return Err(format!("invalid repetition size: {}", &text[..len]));
                }
                len
            }
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let lazy = usize::from(text[len..].starts_with('?'));
    Ok(Some(&text[..len + lazy]))
}

/// Returns the length of `{least}`, `{least,}` or `{least,most}` and its counts, `most` being `least` without a comma.
fn counts(text: &str) -> Option<(usize, u32, Option<u32>)> {
    let inside = &text[1..text.find('}')?];
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let is_padded = digits.len() > 1 && digits.starts_with('0');
        (is_number && !is_padded).then(|| digits.parse().unwrap_or(u32::MAX))
    };
    let (least, most) = match inside.split_once(',') {
        None => (number(inside)?, Some(number(inside)?)),
        Some((least, "")) => (number(least)?, None),
        Some((least, most)) => (number(least)?, Some(number(most)?)),
    };
    Some((inside.len() + 2, least, most))
}

/// Returns the ASCII characters of `\d`, `\s` or `\w`, as parts of a class.
fn perl(name: char) -> Option<&'static str> {
    match name.to_ascii_lowercase() {
        'd' => Some("0-9"),
        's' => Some(r"\t\n\x0c\r\x20"),
        'w' => Some("0-9A-Za-z_"),
        _ => None,
    }
}

struct Translator<'p> {
    rest: &'p str,
    out: String,
}

impl<'p> Translator<'p> {
    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Takes a character that is only itself.
    fn literal(&mut self, c: char) {
        self.skip(c.len_utf8());
        self.push(c);
    }

    /// Writes a character that is only itself.
    fn push(&mut self, c: char) {
        match c.is_ascii() && !c.is_ascii_alphanumeric() {
            true => self.out.push_str(&format!("\\x{:02x}", c as u32)),
            false => self.out.push(c),
        }
    }

    /// Takes an escape sequence outside a class.
    fn escape(&mut self) -> Result<(), String> {
        let Some(name) = self.rest[1..].chars().next() else {
            self.out.push('\\');
            self.skip(1);
            return Ok(());
        };
        if name == 'Q' {
            let quoted = &self.rest[2..];
            let (text, len) = match quoted.find(r"\E") {
                Some(end) => (&quoted[..end], end + 2),
                None => (quoted, quoted.len()),
            };
            self.skip(2 + len);
            text.chars().for_each(|c| self.push(c));
            return Ok(());
        }
        if let Some(class) = perl(name) {
            let not = if name.is_ascii_uppercase() { "^" } else { "" };
            self.out.push_str(&format!("(?-i:[{not}{class}])"));
            self.skip(2);
            return Ok(());
        }
        match name {
            'b' | 'B' => self.out.push_str(&format!(r"(?-u:\{name})")),
            'C' => self.out.push_str("(?s-u:.)"),
            'A' | 'z' => self.out.push_str(&format!(r"\{name}")),
            'p' | 'P' => return self.property(),
            _ => {
                let c = self.character()?;
                self.push(c);
                return Ok(());
            }
        }
        self.skip(2);
        Ok(())
    }

    /// Takes `\pN`, `\p{Name}` or their complements.
    fn property(&mut self) -> Result<(), String> {
        let inside = &self.rest[2..];
        let len = match inside.chars().next() {
            Some('{') => inside.find('}').map_or(inside.len(), |end| end + 1),
            c => c.map_or(0, char::len_utf8),
        };
        let all = &self.rest[..2 + len];
        let name = inside[..len].trim_start_matches('{').trim_end_matches('}');
        let not = all.starts_with(r"\P") != name.starts_with('^');
        let name = name.trim_start_matches('^');
        let letter = if not { 'P' } else { 'p' };
        let translated = match name {
            "Any" => format!(r"\{letter}{{Any}}"),
            // The name of a category, or of a script.
            _ if name.len() <= 2 => format!(r"\{letter}{{gc={name}}}"),
            _ => format!(r"\{letter}{{sc={name}}}"),
        };
        let is_name = name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_');
        if !is_name || regex_syntax::parse(&translated).is_err() {
            return Err(format!("invalid character class range: {all}"));
        }
        self.out.push_str(&translated);
        self.skip(all.len());
        Ok(())
    }

    /// Takes a character that may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let mut chars = self.rest.chars();
        let first = chars.next().unwrap_or_default();
        if first != '\\' {
            self.skip(first.len_utf8());
            return Ok(first);
        }
        let Some(name) = chars.next() else {
            return Err(r"trailing \".to_string());
        };
        let after = &self.rest[1 + name.len_utf8()..];
        let digits = |text: &str, most: usize, radix: u32| {
            text.chars()
                .take(most)
                .take_while(|c| c.is_digit(radix))
                .count()
        };
        let (code, len) = match name {
            'a' => (Some(7), 0),
            'f' => (Some(12), 0),
            't' => (Some(9), 0),
            'n' => (Some(10), 0),
            'r' => (Some(13), 0),
            'v' => (Some(11), 0),
            'x' if after.starts_with('{') => {
                let end = after.find('}').unwrap_or(0);
                (
                    u32::from_str_radix(after.get(1..end).unwrap_or_default(), 16).ok(),
                    end + 1,
                )
            }
            'x' if digits(after, 2, 16) == 2 => (u32::from_str_radix(&after[..2], 16).ok(), 2),
            // Up to three octal digits; one that is not zero alone would be a reference to a group.
            '0' | '1'..='7' if name == '0' || digits(after, 1, 8) == 1 => {
                let n = digits(after, 2, 8);
                (u32::from_str_radix(&self.rest[1..2 + n], 8).ok(), n)
            }
            _ if name.is_ascii() && !name.is_ascii_alphanumeric() => (Some(name as u32), 0),
            _ => (None, 0),
        };
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(format!(r"invalid escape sequence: \{name}"));
        };
        self.skip(1 + name.len_utf8() + len);
        Ok(c)
    }

    /// Takes a class in brackets.
    fn class(&mut self) -> Result<(), String> {
        let start = self.rest;
        self.out.push('[');
        self.skip(1);
        if self.rest.starts_with('^') {
            self.out.push('^');
            self.skip(1);
        }
        let mut is_first = true;
        loop {
            if self.rest.is_empty() {
                return Err(format!("missing ]: {start}"));
            }
            if self.rest.starts_with(']') && !is_first {
                self.out.push(']');
                self.skip(1);
                return Ok(());
            }
            is_first = false;
            self.item()?;
        }
    }

    /// Takes an item of a class.
    fn item(&mut self) -> Result<(), String> {
        if let Some(name) = self.rest.strip_prefix("[:")
            && let Some(end) = name.find(":]")
        {
            let all = &self.rest[..end + 4];
            if !ASCII.contains(&name[..end].trim_start_matches('^')) {
                return Err(format!("invalid character class range: {all}"));
            }
            self.out.push_str(all);
            self.skip(all.len());
            return Ok(());
        }
        if let Some(name) = self
            .rest
            .strip_prefix('\\')
            .and_then(|rest| rest.chars().next())
        {
            if let Some(class) = perl(name) {
                match name.is_ascii_uppercase() {
                    true => self.out.push_str(&format!("[^{class}]")),
                    false => self.out.push_str(class),
                }
                self.skip(2);
                return Ok(());
            }
            if matches!(name, 'p' | 'P') {
                return self.property();
            }
        }
        let start = self.rest;
        let low = self.character()?;
        self.push(low);
        let is_range =
            self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1;
        if is_range {
            self.skip(1);
            let high = self.character()?;
            if high < low {
                let range = &start[..start.len() - self.rest.len()];
                return Err(format!("invalid character class range: {range}"));
            }
            self.out.push('-');
            self.push(high);
        }
        Ok(())
    }

    /// Takes the beginning of a group.
    fn group(&mut self) -> Result<(), String> {
        let Some(flags) = self.rest.strip_prefix("(?") else {
            self.out.push('(');
            self.skip(1);
            return Ok(());
        };
        let len = match flags.starts_with("P<") {
            true => 2,
            false => {
                let end = flags.find(|c| !"imsU-".contains(c)).unwrap_or(flags.len());
                match flags[end..].chars().next() {
                    Some(':' | ')') | None => end + usize::from(end < flags.len()),
                    Some(c) => {
                        let all = &self.rest[..2 + end + c.len_utf8()];
                        return Err(format!("invalid perl operator: {all}"));
                    }
                }
            }
        };
        self.out.push_str(&self.rest[..2 + len]);
        self.skip(2 + len);
        Ok(())
    }
}
