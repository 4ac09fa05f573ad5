//! Text to tokens.

use super::diagnostic::Diagnostic;
use super::ir::Loc;
use std::sync::Arc;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Tok<'a> {
    /// `name`, `dialect.name`
    Bare(&'a str),
    /// `%name` or `%name#2`
    Percent(&'a str),
    /// `@name` or `@"name"`
    At(String),
    /// `#name`
    Hash(&'a str),
    /// `!name`
    Bang(&'a str),
    /// `^name`
    Caret(&'a str),
    Int(&'a str),
    Float(&'a str),
    String(Vec<u8>),
    /// One of `()[]{}<>,:=-?*+` or `->`, `::`
    Punct(&'a str),
    End,
}

/// A place to read the next token from; a copy is a way back.
#[derive(Clone)]
pub(super) struct Lexer<'a> {
    pub(super) text: &'a str,
    /// The start of the next token, after white space.
    pub(super) at: usize,
    file: Arc<str>,
    /// Starts of lines.
    lines: Arc<Vec<usize>>,
    first_line: usize,
}

pub(super) fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str, file: &str, first_line: usize) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let lines = std::iter::once(0)
            .chain(starts.map(|(i, _)| i + 1))
            .collect();
        let mut lexer = Lexer {
            text,
            at: 0,
            file: file.into(),
            lines: Arc::new(lines),
            first_line,
        };
        lexer.skip_space();
        lexer
    }

    pub(super) fn loc_at(&self, at: usize) -> Loc {
        let line = self.lines.partition_point(|start| *start <= at).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        Loc {
            file: self.file.clone(),
            line: line + self.first_line,
            column: at.saturating_sub(start) + 1,
            name: None,
        }
    }

    pub(super) fn loc(&self) -> Loc {
        self.loc_at(self.at)
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    pub(super) fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn advance(&mut self, n: usize) -> &'a str {
        let token = self.rest().get(..n).unwrap_or("");
        self.at += token.len();
        self.skip_space();
        token
    }

    fn word_len(&self, from: usize) -> usize {
        let bytes = self.rest().as_bytes();
        bytes.iter().skip(from).take_while(|b| is_word(**b)).count()
    }

    /// The next token, consumed.
    pub(super) fn next(&mut self) -> Result<Tok<'a>, Diagnostic> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let Some(&first) = bytes.first() else {
            return Ok(Tok::End);
        };
        let second = bytes.get(1).copied().unwrap_or(0);
        Ok(match first {
            b'%' => {
                let mut n = 1 + self.word_len(1);
                if bytes.get(n) == Some(&b'#') {
                    n += 1;
                    n += bytes
                        .iter()
                        .skip(n)
                        .take_while(|b| b.is_ascii_digit())
                        .count();
                }
                Tok::Percent(self.advance(n).get(1..).unwrap_or(""))
            }
            b'@' if second == b'"' => {
                self.at += 1;
                let start = self.loc();
                let name = self.string()?;
                if name.contains(&0) {
                    let message = "a symbol's name cannot contain a zero byte";
                    return Err(Diagnostic::error(&start, message));
                }
                Tok::At(String::from_utf8_lossy(&name).into_owned())
            }
            b'@' => {
                let n = 1 + self.word_len(1);
                Tok::At(self.advance(n).get(1..).unwrap_or("").to_string())
            }
            b'#' | b'!' | b'^' => {
                let n = 1 + self.word_len(1);
                let name = self.advance(n).get(1..).unwrap_or("");
                match first {
                    b'#' => Tok::Hash(name),
                    b'!' => Tok::Bang(name),
                    _ => Tok::Caret(name),
                }
            }
            b'"' => Tok::String(self.string()?),
            b'-' if second == b'>' => Tok::Punct(self.advance(2)),
            b':' if second == b':' => Tok::Punct(self.advance(2)),
            b'0'..=b'9' => self.number(),
            _ if first.is_ascii_alphabetic() || first == b'_' => {
                let n = self.word_len(0);
                Tok::Bare(self.advance(n))
            }
            _ if b"()[]{}<>,:=-?*+".contains(&first) => Tok::Punct(self.advance(1)),
            _ => return Err(Diagnostic::error(&self.loc(), "unexpected character")),
        })
    }

    fn number(&mut self) -> Tok<'a> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| {
            bytes
                .iter()
                .skip(from)
                .take_while(|b| b.is_ascii_digit())
                .count()
        };
        if bytes.first() == Some(&b'0') && bytes.get(1) == Some(&b'x') {
            let n = bytes
                .iter()
                .skip(2)
                .take_while(|b| b.is_ascii_hexdigit())
                .count();
            if n > 0 {
                return Tok::Int(self.advance(2 + n));
            }
        }
        let mut n = digits(0);
        if bytes.get(n) != Some(&b'.') {
            return Tok::Int(self.advance(n));
        }
        n += 1 + digits(n + 1);
        if matches!(bytes.get(n), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(n + 1), Some(b'+' | b'-')));
            let exponent = digits(n + 1 + sign);
            if exponent > 0 {
                n += 1 + sign + exponent;
            }
        }
        Tok::Float(self.advance(n))
    }

    fn string(&mut self) -> Result<Vec<u8>, Diagnostic> {
        let start = self.loc();
        let bytes = self.rest().as_bytes();
        let mut value = Vec::new();
        let mut i = 1;
        loop {
            match bytes.get(i) {
                None | Some(b'\n') => {
                    return Err(Diagnostic::error(&start, "expected '\"' in string literal"));
                }
                Some(b'"') => break,
                Some(b'\\') => {
                    let hex = |b: u8| (b as char).to_digit(16);
                    match (bytes.get(i + 1), bytes.get(i + 2)) {
                        (Some(b'n'), _) => value.push(b'\n'),
                        (Some(b't'), _) => value.push(b'\t'),
                        (Some(c @ (b'"' | b'\\')), _) => value.push(*c),
                        (Some(a), Some(b)) if hex(*a).is_some() && hex(*b).is_some() => {
                            let byte = hex(*a).unwrap_or(0) * 16 + hex(*b).unwrap_or(0);
                            value.push(byte as u8);
                            i += 1;
                        }
                        _ => {
                            let message = "unknown escape in string literal";
                            return Err(Diagnostic::error(&self.loc_at(self.at + i), message));
                        }
                    }
                    i += 2;
                }
                Some(b) => {
                    value.push(*b);
                    i += 1;
                }
            }
        }
        self.at += i + 1;
        self.skip_space();
        Ok(value)
    }
}
