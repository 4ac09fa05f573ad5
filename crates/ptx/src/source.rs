//! [`Source`]: PTX as tokens.

/// A text and where its tokens are.
pub(crate) struct Source {
    text: String,
    tokens: Vec<(u32, u32)>,
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'$' | b'%')
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let (bytes, mut tokens, mut at) = (text.as_bytes(), Vec::new(), 0);
        while at < bytes.len() {
            let from = at;
            at += 1;
            match bytes[from] {
                c if c.is_ascii_whitespace() => continue,
                b'/' if bytes.get(at) == Some(&b'/') => {
                    at += bytes[at..].iter().take_while(|c| **c != b'\n').count();
                    continue;
                }
                b'"' => at += bytes[at..].iter().take_while(|c| **c != b'"').count() + 1,
                c if is_word(c) => at += bytes[at..].iter().take_while(|c| is_word(**c)).count(),
                _ => {}
            }
            tokens.push((from as u32, at as u32));
        }
        Source {
            text: text.to_string(),
            tokens,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Token `i`; the empty text behind the last one.
    pub(crate) fn get(&self, i: usize) -> &str {
        let range = self.tokens.get(i);
        range.map_or("", |(from, to)| &self.text[*from as usize..*to as usize])
    }

    /// The text of the statement that starts with token `i`.
    pub(crate) fn statement(&self, i: usize) -> &str {
        let from = self.tokens.get(i).map_or(0, |(from, _)| *from as usize);
        let text = &self.text[from..];
        &text[..text.find(';').unwrap_or(text.len())]
    }

    /// The position behind the bracket that closes the one at `i`, or the end.
    pub(crate) fn behind(&self, i: usize) -> usize {
        let (mut depth, mut at) = (0, i);
        while at < self.len() {
            match self.get(at) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        at
    }
}
